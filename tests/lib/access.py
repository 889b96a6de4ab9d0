"""Clients over HTTP with a token, one request at a time: for tests of who may do what."""

import json
from urllib.parse import urlsplit

import pytest

from lib import berthwire as wire


def connect(url, token, timeout=20, **keywords):
    address = urlsplit(url)
    connection = wire.Connection.tcp(address.hostname, address.port, timeout=timeout, **keywords)
    try:
        connection.upgrade(token=token)
        connection.hello()
    except BaseException:
        connection.close()
        raise
    return connection


def call(connection, name, /, **values):
    """The reply's fields, or the errno of an ERROR."""
    tag = connection.request(name, **values)
    reply = connection.wait(tag)
    while wire.BY_NUMBER[reply.type].kind != "REPLY":
        reply = connection.wait(tag)
    return reply["error"] if reply.name == "ERROR" else reply.fields


def status_of(connection):
    return json.loads(call(connection, "STATUS")["json"])


def refused(url, token, **keywords):
    with pytest.raises(wire.Refused) as caught:
        connect(url, token, **keywords).close()
    return caught.value
