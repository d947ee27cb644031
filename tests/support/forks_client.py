# The ``python`` of forks.py, written behind two lines that define the real one (REAL) and the server's socket (SOCKET). It runs without
# site and PYTHON* variables, and uses built-in modules only, as imports are slow in the guest.
import _socket
import marshal
import posix
import sys


def main(real, path):
    arguments = sys.argv[1:]
    program = arguments[1:] if arguments[:1] == ["-u"] else arguments
    if not program or (program[0].startswith("-") and program[0] not in ("-c", "-m")):
        posix.execv(real, [real, *arguments])
    files = []
    for name in posix.listdir("/proc/self/fd"):
        try:
            posix.fstat(int(name))
        except OSError:  # the descriptor of the listing itself
            continue
        files.append(int(name))
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(path)
    request = marshal.dumps((arguments, dict(posix.environ), posix.getcwd(), files))
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    server.sendmsg([len(request).to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    server.sendall(request)
    answer = server.recv(2)
    if len(answer) < 2:
        sys.exit("forks: the server is gone")
    status = int.from_bytes(answer, "little", signed=True)
    if status < 0:  # ended by a signal
        posix.kill(posix.getpid(), -status)
    posix._exit(status)


main(REAL, SOCKET)  # noqa: F821
