"""Let a network interface send frames as its wire carries them, short and with checksums: run in its namespace."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

SIOCETHTOOL = 0x8946
#: Numbers of ``linux/ethtool.h``: segmentation of TCP, in general, scattered buffers, checksums.
STSO, SGSO, SSG, STXCSUM = 0x1F, 0x24, 0x19, 0x17


def switch_off(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what in (STSO, SGSO, STXCSUM, SSG):
            value = bytearray(struct.pack("II", what, 0))
            address = (struct.unpack("Q", struct.pack("P", _address(value))))[0]
            fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sQ16x", interface.encode(), address))


def _address(buffer: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        switch_off(name)
