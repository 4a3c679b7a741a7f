"""Messages of exceptions."""

import errno

import pytest

from disttrain.errors import in_one_line, message_of


def raised(error, before):
    """`error` as raised while `before` was handled."""
    try:
        try:
            raise before
        except Exception:
            raise error  # noqa: B904
    except Exception as found:
        return found


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), "the disk is full: /a/b"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/a/b"), "the disk quota is used up: /a/b"),
        (OSError(errno.EIO, "Input/output error", "/a/b"), "[Errno 5] Input/output error: '/a/b'"),
        (ValueError("two\nlines"), "two lines"),
    ],
)
def test_a_full_disk_is_called_that(error, message):
    assert message_of(error) == message
    assert in_one_line(error) == f"{type(error).__name__}: {message}"


def test_a_full_disk_is_named_behind_the_exception_that_it_caused():
    full = OSError(errno.ENOSPC, "No space left on device")
    assert message_of(raised(RuntimeError("unexpected pos 704 vs 598"), full)) == "the disk is full"
    assert message_of(raised(RuntimeError("a"), ValueError("b"))) == "a"
