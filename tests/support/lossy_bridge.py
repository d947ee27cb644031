"""A bridge of two network interfaces that loses, repeats, reorders, delays, and damages RoCE packets; for kernels without netem.

``python lossy_bridge.py ONE OTHER loss=0.01 delay=0.02 ...`` forwards frames until it gets SIGTERM, then prints what it did. Probabilities
are of each packet; reorder is that of a delay of 2 ms more, delay is in seconds. Everything but UDP port 4791 passes unchanged. SIGUSR1
takes the link down for RoCE packets, or up again.
"""

import collections
import heapq
import random
import select
import signal
import socket
import struct
import sys
import time

_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING, _ETH_P_ALL = 263, 15, 23, 3

#: struct virtio_net_hdr, which precedes each frame, so that checksums that nobody has computed yet pass through; Ethernet, IPv4, UDP.
_VNET, _ETHERNET, _IPV4, _IPV6, _UDP = 10, 14, 20, 40, 8
_HEADER, _GSO_UDP = struct.Struct("<BBHHHH"), 5  # flags, kind of segmentation, length of headers, bytes of a segment, place of the checksum
_REORDER_S = 0.002


def opened(interface):
    """Return a socket for all frames of an interface."""
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    one.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    one.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    one.bind((interface, 0))
    return one


def is_roce(frame):
    """Whether a frame is a packet to UDP port 4791, over IPv4 or IPv6."""
    at = _VNET + _ETHERNET
    kind = frame[at - 2 : at]
    protocol, length = (frame[at + 9], 20) if kind == b"\x08\0" else (frame[at + 6], 40) if kind == b"\x86\xdd" else (0, 0)
    return protocol == 17 and frame[at + length + 2 : at + length + 4] == struct.pack(">H", 4791)


def split(frame):
    """Return the packets of a frame, which the kernel passes on as one if a program sent them as one (UDP_SEGMENT)."""
    flags, kind, _, size, *checksum = _HEADER.unpack_from(frame)
    if kind != _GSO_UDP:
        return [frame]
    ip = _VNET + _ETHERNET
    v4 = frame[ip] >> 4 == 4
    udp = ip + (_IPV4 if v4 else _IPV6)
    data = udp + _UDP
    (number,), (before, pseudo) = struct.unpack_from(">H", frame, ip + 4), struct.unpack_from(">HH", frame, udp + 4)
    packets = []
    for i, at in enumerate(range(data, len(frame), size)):
        packet = bytearray(frame[:data] + frame[at : at + size])
        length = len(packet) - udp
        _HEADER.pack_into(packet, 0, flags, 0, 0, 0, *checksum)
        struct.pack_into(">HH", packet, udp + 4, length, summed([pseudo, before ^ 0xFFFF, length]))
        if v4:
            struct.pack_into(">HH", packet, ip + 2, _IPV4 + length, number + i)
            struct.pack_into(">H", packet, ip + 10, 0)
            struct.pack_into(">H", packet, ip + 10, summed(struct.unpack_from(">10H", packet, ip)) ^ 0xFFFF)
        else:
            struct.pack_into(">H", packet, ip + 4, length)
        packets.append(bytes(packet))
    return packets


def summed(words):
    """Return the sum of an Internet checksum, before its complement (RFC 1071)."""
    total = sum(words)
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def main(one, other, *options):
    faults = collections.defaultdict(float, {name: float(value) for name, _, value in (option.partition("=") for option in options)})
    draw, done, late = random.Random(int(faults["seed"])), collections.Counter(), []
    state = {"down": False, "over": False}
    signal.signal(signal.SIGUSR1, lambda *_: state.update(down=not state["down"]))
    signal.signal(signal.SIGTERM, lambda *_: state.update(over=True))
    ends = opened(one), opened(other)
    print("ready", flush=True)

    def send(end, frame):
        try:
            end.send(frame)
        except OSError:
            done["unsent"] += 1

    while not state["over"]:
        ready, _, _ = select.select(ends, (), (), max(0.0, min(0.1, late[0][0] - time.monotonic())) if late else 0.1)
        while late and late[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(late)
            send(end, frame)
        for end in ready:
            frame, to = end.recv(1 << 17), ends[end is ends[0]]
            if not is_roce(frame):
                send(to, frame)
                continue
            for packet in split(frame):
                done["packets"] += 1
                if state["down"] or draw.random() < faults["loss"]:
                    done["lost"] += 1
                    continue
                if draw.random() < faults["corrupt"]:
                    done["damaged"] += 1
                    packet, place = bytearray(packet), draw.randrange(_VNET + _ETHERNET + _IPV4 + _UDP, len(packet))
                    packet[place] ^= 1 << draw.randrange(8)
                wait = faults["delay"]
                if draw.random() < faults["reorder"]:
                    done["reordered"] += 1
                    wait += _REORDER_S
                twice = draw.random() < faults["repeat"]
                done["repeated"] += twice
                for _ in range(1 + twice):
                    if wait:
                        heapq.heappush(late, (time.monotonic() + wait, done["packets"], to, bytes(packet)))
                    else:
                        send(to, packet)
    print(*(f"{name}={number}" for name, number in done.items()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
