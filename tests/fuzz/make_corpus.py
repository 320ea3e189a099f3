#!/usr/bin/env python3
"""Writes the seeds of the fuzzers' corpus, tests/fuzz/corpus/TARGET/golden-*, from tests/golden.

    make_corpus.py            and nothing else; files that a fuzzer found stay beside them

The first byte of an input is its mode (fuzz_target.h): 0 as it is, 1 resealed, 2 read as choices.
"""
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
AS_IT_IS, RESEALED, FROM_CHOICES = b"\0", b"\1", b"\2"


def golden(name):
    return (GOLDEN / name).read_bytes()


def replaced(data, offset, new):
    return data[:offset] + new + data[offset + len(new):]


def frame_header():
    area = golden("frame_v1.bin")[:4096]
    yield AS_IT_IS + area
    yield RESEALED + area
    yield RESEALED + replaced(area, 24, struct.pack("<QQ", 1, 1))  # lengths that the pieces do not cover
    yield RESEALED + replaced(area, 40, struct.pack("<I", 4032))  # a body up to the end of the area
    yield RESEALED + replaced(area, 176, struct.pack("<I", 4096))  # more tokens than there are
    yield AS_IT_IS + area[:64]


def superblock():
    fields = b"TERRDIR1" + struct.pack("<II", 1, 0) + bytes(range(16)) + bytes(range(32)) + struct.pack("<Q", 1 << 30)
    yield RESEALED + fields.ljust(4096, b"\0")
    yield RESEALED + replaced(fields, 8, struct.pack("<I", 2)).ljust(4096, b"\0")
    keys = struct.pack("<QII", 5, 2, 0) + struct.pack("<II16sII16s", 1, 0, b"a" * 16, 2, 0, b"b" * 16)
    yield RESEALED + (replaced(fields, 8, struct.pack("<I", 2)) + keys).ljust(4096, b"\0")
    yield RESEALED + replaced(fields, 8, struct.pack("<I", 99)).ljust(4096, b"\0")
    yield AS_IT_IS + fields


def manifest_record():
    for kind, name in ((0, "place_record_v1.bin"), (1, "content_record_v1.bin"), (2, "root_record_v1.bin"),
                       (0, "place_record_v2.bin")):
        value = golden(name)
        yield AS_IT_IS + bytes([kind]) + value
        yield RESEALED + bytes([kind]) + value
        yield RESEALED + bytes([kind]) + value[:len(value) // 2]
    yield AS_IT_IS + b"\3" + bytes(range(36))
    place = golden("place_record_v1.bin")
    yield RESEALED + b"\0" + replaced(place, 128, struct.pack("<Q", 1 << 63))  # an extent's offset and length
    yield RESEALED + b"\0" + replaced(place, 112, struct.pack("<I", 0xffffffff))


def tier_page():
    page, area = golden("tier_page_v1.bin"), golden("frame_v1.bin")[:4096]
    yield AS_IT_IS + page + area
    yield RESEALED + page + area
    yield RESEALED + replaced(page, 8, struct.pack("<I", 2)) + area
    listed = struct.pack("<III16s", 2, 0, 0, b"")[:24] + struct.pack("<IIIIII", 0, 1, 2, 3, 256, 2)
    yield RESEALED + replaced(replaced(page, 8, struct.pack("<I", 2)), 80, listed) + area
    yield RESEALED + replaced(replaced(page, 8, struct.pack("<I", 2)), 80, b"\xff" * 4) + area
    for name in ("tier_page_v2.bin", "tier_page_sealed_v2.bin"):
        yield AS_IT_IS + golden(name) + area
        yield RESEALED + golden(name) + area
    yield RESEALED + replaced(golden("tier_page_sealed_v2.bin"), 84, b"\0" * 4) + area  # sealed with no key
    yield RESEALED + replaced(golden("tier_page_v2.bin"), 84, b"\1\0\0\0") + area  # a key, and not sealed


def bulk_message():
    """Behind the mode stands which of the five messages it is."""
    magics = (b"TERRBLK1", b"TERRSHM1")
    yield AS_IT_IS + b"\0" + magics[0] + struct.pack("<II", 1, 3) + bytes(48)
    yield AS_IT_IS + b"\1" + magics[0] + struct.pack("<IIQ", 1, 0, 4 << 20)
    yield AS_IT_IS + b"\2DATA" + struct.pack("<IQQQ", 0, 7, 4096, 4 << 20)
    yield AS_IT_IS + b"\2DATA" + struct.pack("<IQQQ", 0, 7, (1 << 64) - 4096, 4096)  # around the end of numbers
    yield AS_IT_IS + b"\2ABRT" + struct.pack("<IQQQ", 4, 7, 0, 0)
    yield AS_IT_IS + b"\3" + magics[1] + struct.pack("<II", 1, 0) + bytes(48)
    yield AS_IT_IS + b"\4" + magics[1] + struct.pack("<IIQQQ", 1, 0, 1 << 30, 1 << 16, 1 << 26)


def part_message():
    """Behind the mode stand the kind, and where the slices are cut."""
    get = b"\x09" + struct.pack("<Q", 7) + b"\x10\x80\x20" + b"\x7a\x05bytes"
    put = b"\x0a\x10" + bytes(16) + b"\x11" + struct.pack("<Q", 7) + b"\x18\x80\x20" + b"\x7a\x05bytes"
    for cut in (0, 1, 5, 11):
        yield AS_IT_IS + b"\0" + bytes([cut]) + get
        yield AS_IT_IS + b"\1" + bytes([cut]) + put
    yield AS_IT_IS + b"\0\2" + b"\x1a\x02\x10\x05"  # results
    yield AS_IT_IS + b"\0\2" + b"\xb2\x01\x03abc\xbd\x01\x01\x02\x03\x04" + get  # unknown fields
    yield AS_IT_IS + b"\0\2" + b"\x7a" + b"\xff" * 9 + b"\x01"  # a length of 2^64 - 1
    yield AS_IT_IS + b"\1\2" + put + put


def main():
    generator = random.Random(1)
    for target in (frame_header, superblock, manifest_record, tier_page, bulk_message, part_message):
        folder = HERE / "corpus" / target.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("golden-*"):
            old.unlink()
        choices = [FROM_CHOICES + generator.randbytes(n) for n in (0, 40, 90, 200, 400)]
        for number, data in enumerate([*target(), *choices]):
            (folder / f"golden-{number:02}").write_bytes(data)


if __name__ == "__main__":
    main()
