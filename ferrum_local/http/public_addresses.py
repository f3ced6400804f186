"""Which IP addresses belong to the public internet, and to nothing nearer."""

from __future__ import annotations

import ipaddress

# What Python's tables take for global: the IETF's own block, which Oracle's cloud uses for
# metadata, and the address of Azure's platform, which answers only inside that cloud.
_NOT_GLOBAL = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32"))
_IPV6_UNICAST = ipaddress.ip_network("2000::/3")
# Prefixes whose last 32 bits are an IPv4 address that a gateway turns them into.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")


def is_public(address: str) -> bool:
    """Whether ``address`` is none of this machine, its networks, its cloud, or a group of hosts.

    IPv6 forms that stand for an IPv4 address are judged by that one.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _ipv4_within(ip)
        if inner is None:
            return ip in _IPV6_UNICAST and ip.teredo is None and _is_global(ip)
        ip = inner
    return _is_global(ip) and not any(ip in network for network in _NOT_GLOBAL)


def _ipv4_within(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip in _NAT64 or ip in _IPV4_COMPATIBLE:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return None


def _is_global(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    # is_global alone says yes to multicast, and its tables differ between Python's versions.
    return ip.is_global and not (
        ip.is_private
        or ip.is_loopback
        or ip.is_link_local
        or ip.is_multicast
        or ip.is_reserved
        or ip.is_unspecified
    )
