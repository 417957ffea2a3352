"""Addresses as people type them."""

from pathlib import Path

import pytest

from deployctl.errors import UsageError
from deployctl.hosts.inventory import parse_host

KNOWN = Path("known")


@pytest.mark.parametrize(
    ("text", "user", "address", "port"),
    [
        ("root@192.0.2.1", "root", "192.0.2.1", 22),
        ("deploy@vps.example.com:2222", "deploy", "vps.example.com", 2222),
        ("vps.example.com", "root", "vps.example.com", 22),
        ("deploy@[2001:db8::1]:2222", "deploy", "2001:db8::1", 2222),
        ("deploy@[2001:db8::1]", "deploy", "2001:db8::1", 22),
        ("deploy@2001:db8::1", "deploy", "2001:db8::1", 22),
        ("deploy@fe80::1%eth0", "deploy", "fe80::1%eth0", 22),
        (" admin@10.0.0.1:22 ", "admin", "10.0.0.1", 22),
    ],
)
def test_an_address_is_read_as_it_is_written(text, user, address, port):
    target = parse_host(text, known_hosts=KNOWN)
    assert (target.user, target.address, target.port) == (user, address, port)
    assert target.known_hosts == KNOWN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root@",
        "@192.0.2.1",
        "root@192.0.2.1:",
        "root@192.0.2.1:0",
        "root@192.0.2.1:65536",
        "root@192.0.2.1:ssh",
        "root@[2001:db8::1",
        "root@[2001:db8::1]22",
        "root@[vps]:22",
        "-oProxyCommand=touch@192.0.2.1",
        "root@-oProxyCommand=touch",
        "root@a b",
        "root@a;reboot",
        "root@$(reboot)",
    ],
)
def test_what_is_no_address_is_refused_with_the_form_to_write(text):
    with pytest.raises(UsageError) as caught:
        parse_host(text, known_hosts=KNOWN)
    assert "user@address" in caught.value.hint


def test_only_users_other_than_root_need_sudo():
    assert parse_host("root@h", known_hosts=KNOWN).become is False
    assert parse_host("deploy@h", known_hosts=KNOWN).become is True


@pytest.mark.parametrize("text", ["root@192.0.2.1", "deploy@[2001:db8::1]:2222", "deploy@vps.example.com:2222"])
def test_a_target_prints_as_what_would_be_typed(text):
    target = parse_host(text, known_hosts=KNOWN)
    assert parse_host(str(target), known_hosts=KNOWN) == target
