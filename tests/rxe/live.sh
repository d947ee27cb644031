# Run in the guest: /live becomes the machine's own root, read over 9p; what is written goes to memory and is lost at the end. The folder
# /run/guest in it is shared with guest.py, which put devices and command there and reads status; then there are RDMA devices.
die() { echo "guest: $*" > /dev/console; exit 1; }

mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,ro,msize=512000 host /host || die "the machine's root is not there"
mount -t tmpfs -o mode=755 memory /memory && mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work root /live || die "no overlay"

cd /live && for kind in proc sysfs:sys devtmpfs:dev tmpfs:run; do mount -t "${kind%:*}" "${kind%:*}" "/live/${kind#*:}"; done
mkdir -p dev/pts dev/shm run/lock run/guest
mount -t devpts devpts dev/pts && mount -t tmpfs shm dev/shm
ln -s /proc/self/fd dev/fd && ln -s fd/0 dev/stdin && ln -s fd/1 dev/stdout && ln -s fd/2 dev/stderr
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none guest run/guest || die "the folder of guest.py is not there"

[ ! -e run/guest/date ] || date -s "@$(cat run/guest/date)" > /dev/null
chroot /live /bin/sh /run/guest/devices || die "no RDMA devices"
touch /started
