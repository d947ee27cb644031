"""The meeting point of PEs that MPI did not start: the store, its server, and the job's secret.

=========  ================================================  ===========================================================
launcher   server                                            secret
=========  ================================================  ===========================================================
pgas.run   the launcher, on this node or --master            random; for several nodes from the user's key
torchrun   rank 0, at MASTER_ADDR                            random, by torch's own store; without torch the user's key
srun       rank 0, at the first host of the step             from the user's key
given      the process that called pgas.unique_id()          random, in the unique id
=========  ================================================  ===========================================================

The user's key is PGAS_SECRET or, if that is not set, a file that only the user may read, which is created at its first use. The secret is
derived from the key and the job's name: by scrypt from PGAS_SECRET, by HMAC from the file, whose bytes are random. torchrun's MASTER_PORT
belongs to torch, because its agent or the program's init_process_group may listen there. If ranks cannot exchange a port, they derive it
from the job's name; if that port is taken, they try the following ones.
"""

import atexit
import contextlib
import hashlib
import hmac
import importlib.util
import itertools
import json
import os
import secrets
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pgas.base import config, text
from pgas.base.errors import BootstrapError
from pgas.base.launcher import LAUNCHED, MAX_PES, Launched, read_launched
from pgas.job.bootstrap.host_lists import first_host
from pgas.job.bootstrap.own_addresses import loopback, outward, own_host
from pgas.job.bootstrap.store import Store
from pgas.job.bootstrap.store_messages import PORTS, Address
from pgas.job.bootstrap.store_server import StoreServer

#: Bytes of a unique id: a mark, port, secret, the job's own bytes, length of the host's name, the name.
_ID_BYTES, _MARK, _OWN = 128, b"pgas 2\0\0", 16

#: Minimum bytes of a key file, because everybody could guess a key that was cut short.
_KEY_MIN = 32

#: The range of derived ports, below Linux's ports for clients (ip_local_port_range).
_FIRST_PORT, _LAST_PORT = 20000, 32000

#: Servers of this process, which serve until it ends.
_servers: list[StoreServer] = []

#: Secrets of the stores of unique ids that this process serves, by the address on which they listen.
_secrets: dict[str, bytes] = {}

#: Number of jobs that this process has formed at a store, by the store's secret and the unique id's own bytes.
_formed: dict[tuple[bytes, str], int] = {}

_published = itertools.count()


def _forked() -> None:
    """Forget the servers in a forked child, because they are its parent's."""
    _servers.clear()
    _secrets.clear()


os.register_at_fork(after_in_child=_forked)


class Given(NamedTuple):
    """A program's arguments of pgas.init()."""

    unique_id: bytes
    rank: int
    size: int


def of(launched: Launched) -> Store:
    """Return the bootstrap of a process with a launcher. Raises BootstrapError."""
    if launched.size is None or not 0 <= launched.rank < launched.size <= MAX_PES:
        raise BootstrapError(
            f"according to {launched.launcher}, this is rank {launched.rank} of {launched.size}; a job has at most {MAX_PES} PEs, from 0 on"
        )
    environment = os.environ
    if launched.launcher == "pgas.run":
        values = read_launched(environment[LAUNCHED])
        return _join(Address(values["host"], values["port"], bytes.fromhex(values["secret"])), launched.rank, launched.size)
    if launched.launcher == "srun":
        name = f"srun {environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
        alone = environment.get("SLURM_STEP_NUM_NODES", environment.get("SLURM_NNODES")) == "1"
        host = loopback() if alone else outward(first_host(environment.get("SLURM_STEP_NODELIST", "")))
        return _meet(launched, _by_name(name, host))
    run, restart = environment.get("TORCHELASTIC_RUN_ID", ""), environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    alone = environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"]
    host, port = _read("MASTER_ADDR", text.host if alone else text.one_host), _read("MASTER_PORT", text.integer)
    if not alone and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and importlib.util.find_spec("torch") is not None:
        return _by_torch(launched, host, port, f"pgas {run} {restart}")
    return _meet(launched, _by_name(f"torchrun {run} {restart} {host}:{port}", loopback() if alone else outward(host)))


def _read(name: str, read: Callable[[str], Any]) -> Any:
    """Return the value of a launcher's variable. Raises BootstrapError."""
    try:
        return read(os.environ[name])
    except ValueError as error:
        raise BootstrapError(f"{name}: {error}") from None


def _join(address: Address, rank: int, size: int, own: str = "") -> Store:
    """Join the next job at a store. own: text that differs between unique ids."""
    number = _formed[address.secret, own] = _formed.get((address.secret, own), 0) + 1
    return Store(address, rank, size, f"job {own}{number}", config.read("PGAS_TIMEOUT"))


def _serve(address: Address) -> Address:
    """Start a server at an address, if this process has none with this secret; return its address."""
    for server in _servers:
        if hmac.compare_digest(server.address.secret, address.secret):
            return server.address
    server = StoreServer(address.host, address.port, address.secret, address.ports)
    _servers.append(server)
    pid = os.getpid()
    atexit.register(lambda: server.drain() if os.getpid() == pid else None)
    return server.address


def _meet(launched: Launched, address: Address) -> Store:
    """Join a store at an address that every rank knows; rank 0 is the server."""
    if launched.rank == 0:
        address = _serve(address)
    return _join(address, launched.rank, launched.size or 1)


def _by_torch(launched: Launched, host: str, port: int, name: str) -> Store:
    """Join a store at an address that rank 0 publishes in the store of torchrun's agent."""
    distributed = importlib.import_module("torch.distributed")
    name = f"{name} {next(_published)}"  # So that every job of these processes has its own secret.
    told = None
    if launched.rank == 0:
        address = _serve(Address(outward(host), 0, secrets.token_bytes(32)))
        told = json.dumps([address.host, address.port, address.secret.hex()])
    try:
        store = distributed.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=config.read("PGAS_TIMEOUT")))
        if told is not None:
            store.set(name, told)
        found, at, secret = json.loads(store.get(name))
    except RuntimeError as error:  # It is the base class of torch's DistError.
        why = str(error).strip().splitlines()[0]
        raise BootstrapError(
            f"rank {launched.rank}: torchrun's own store at {host}:{port} did not return the address of rank 0: {why}"
        ) from error
    return _join(Address(found, at, bytes.fromhex(secret)), launched.rank, launched.size or 1)


def _by_name(name: str, host: str) -> Address:
    """Return the address and secret that a job's name determines."""
    digest = hashlib.sha256(f"{os.getuid()} {name}".encode()).digest()
    port = _FIRST_PORT + int.from_bytes(digest[:4], "big") % (_LAST_PORT - _FIRST_PORT - PORTS)
    return Address(host, port, job_secret(name), PORTS)


# ------------------------------------------------------------------------------------------------------------------------ secrets


def job_secret(name: str) -> bytes:
    """Return the secret for a job's name, from the user's key.

    Raises:
        BootstrapError: if the user's key cannot be made, others may read it, or PGAS_SECRET is too short.
    """
    try:
        given = config.read("PGAS_SECRET")
    except ValueError as error:
        raise BootstrapError(str(error)) from None
    if given:
        return _stretched(given, name)
    return hmac.new(_key(), name.encode(), hashlib.sha256).digest()


def _stretched(given: str, name: str) -> bytes:
    """Return the secret for a job's name from a text that a user chose.

    A listener in place of the store receives a proof against which it can try guesses. Each guess takes 32 MiB and a tenth of a second.
    """
    return hashlib.scrypt(given.encode(), salt=b"pgas " + name.encode(), n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)


def _key() -> bytes:
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pgas" / "secret"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = path.with_name(f"secret.{socket.gethostname()}.{os.getpid()}")
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_hex(32).encode())
            try:
                with contextlib.suppress(FileExistsError):  # Another process was first.
                    os.link(made, path)
            finally:
                made.unlink()
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise BootstrapError(f"{path}: this file is owned or readable by other users; run chmod 600 on it, or set PGAS_SECRET")
            if len(key := file.read()) < _KEY_MIN:
                raise BootstrapError(f"{path} does not contain a key; remove it, or set PGAS_SECRET")
            return key
    except OSError as error:
        raise BootstrapError(f"no key for the job's secret: {error}; set PGAS_SECRET to the same text for all PEs") from error


# ---------------------------------------------------------------------------------------------------------------------- unique ids


def unique_id(host: str | None = None) -> bytes:
    """Return the address and secret of a store in this process, and 16 bytes of a new job, as a unique id (pgas.unique_id)."""
    host = outward(text.one_host(host)) if host else own_host()
    address = _serve(Address(host, 0, _secrets.setdefault(host, secrets.token_bytes(32))))
    name = address.host.encode()
    made = _MARK + address.port.to_bytes(2, "big") + address.secret + secrets.token_bytes(_OWN) + bytes([len(name)]) + name
    if len(made) > _ID_BYTES:
        raise ValueError(f"pgas.unique_id: host {address.host} is too long; pass its IP address instead")
    return made.ljust(_ID_BYTES, b"\0")


def at_unique_id(given: Given) -> Store:
    """Return the bootstrap of a process with a unique id. Raises ValueError, BootstrapError."""
    try:
        if not isinstance(given.unique_id, bytes) or not given.unique_id.startswith(_MARK):
            raise ValueError
        form = f">{len(_MARK)}sH32s{_OWN}sB{_ID_BYTES - len(_MARK) - _OWN - 35}s"
        _, port, secret, own, length, name = struct.unpack(form, given.unique_id)
        host = text.host(name[:length].decode("ascii"))
    except (ValueError, struct.error):
        raise ValueError(f"pgas.init: unique_id must be the {_ID_BYTES} bytes that pgas.unique_id() returned on one PE") from None
    return _join(Address(host, port, secret), given.rank, given.size, f"{own.hex()} ")


def of_process_group(group: Any) -> Given:
    """Return the unique id, rank and size for a torch.distributed process group. Collective over the group."""
    distributed = importlib.import_module("torch.distributed")
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    told: list[Any] = [unique_id() if rank == 0 else None]
    distributed.broadcast_object_list(told, src=distributed.get_global_rank(group, 0), group=group)
    return Given(told[0], rank, size)
