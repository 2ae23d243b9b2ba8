"""Lines and files as the two ends of `zmqps launch` say them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.launch.far import (
    check_name,
    decode,
    open_reader,
    open_voice,
    pack,
    unpack,
)

PATIENCE = allow(20.0)


def test_a_file_is_read_again_from_its_text(tmp_path: Path) -> None:
    content = os.urandom(1000)
    (tmp_path / "file").write_bytes(content)
    assert unpack(pack(tmp_path / "file")) == content


@for_each("text", ["no base64!", "QQ=", "QQ==\n"])
def test_a_part_that_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the content of a file"):
        unpack(text)


@for_each("line", [b"", b"Last login: today\n", b"[1]\n", b"7\n", b"\xff\n", b"[" * 100_000])
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ConfigurationError, match="is not a message of zmqps launch"):
        decode(line)


def test_a_name_stays_below_the_folder() -> None:
    assert check_name("keys/node.key") == "keys/node.key"
    for name in ("", "/etc/passwd", "..", "keys/../../x", "x\0", "."):
        with pytest.raises(ConfigurationError, match="cannot be the name of a file"):
            check_name(name)


def test_what_a_voice_says_is_read_in_order_until_it_closes() -> None:
    async def main() -> list[object]:
        ends = [os.fdopen(fd, mode, buffering=0) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]
        reader, transport = await open_reader(ends[0])
        voice = await open_voice(ends[1])
        messages = [{"number": number, "text": "x" * 100_000 + "\n"} for number in range(5)]

        async def say() -> None:
            for message in messages:
                voice.say(message)
                await voice.flush()
            voice.close()
            voice.say({"too": "late"})

        async with asyncio.timeout(PATIENCE):
            saying = asyncio.create_task(say())
            heard = [decode(line) async for line in reader]
            await saying
        transport.close()
        await asyncio.sleep(0)  # closed by now
        assert heard == messages
        return heard

    assert len(asyncio.run(main())) == 5
