#!/usr/bin/env python3
"""Writes keys.json from the key and root formats alone (DESIGN section 3), with Python's own hashlib: an independent
implementation, so that the C++ one is not its own witness. Run it only to add examples; existing ones never change."""
import hashlib
import json
import struct
import sys


def key_of(parent, tokens, items):
    h = hashlib.sha256()
    h.update(b"terrace-key-1\0" + parent)
    h.update(struct.pack("<I", len(tokens)) + struct.pack("<%dI" % len(tokens), *tokens))
    h.update(struct.pack("<I", len(items)))
    for position, data in items:
        h.update(struct.pack("<II", position, len(data)) + data)
    return h.digest()


def sized(data):
    return struct.pack("<I", len(data)) + data


def spec_bytes(model, revision, form, version, chunk, cut, groups, layers, extras):
    out = b"TKVS" + struct.pack("<H", 1)

    def field(number, data):
        return struct.pack("<HI", number, len(data)) + data

    out += field(1, model) + field(2, revision) + field(3, struct.pack("<B", form)) + field(4, struct.pack("<I", version))
    out += field(5, struct.pack("<I", chunk)) + field(6, struct.pack("<B", cut))
    out += field(7, struct.pack("<I", len(groups)) + b"".join(struct.pack("<BI", r, w) for r, w in groups))
    body = struct.pack("<I", len(layers))
    for group, planes in layers:
        body += struct.pack("<HH", group, len(planes))
        for plane in planes:
            body += struct.pack("<BBIII", *plane)
    out += field(8, body) + field(9, extras)
    return out


def root_of(spec, adapters, salt):
    active = sorted((d, struct.unpack("<I", struct.pack("<f", s))[0]) for d, s in adapters if s != 0.0)
    blob = b"".join(d + struct.pack("<I", bits) for d, bits in active)
    return hashlib.sha256(b"terrace-root-1\0" + sized(spec) + sized(blob) + sized(salt)).digest()


def main():
    keys = []
    zero = bytes(32)

    def add(parent, tokens, items):
        key = key_of(parent, tokens, items)
        keys.append({"parent": parent.hex(), "tokens": tokens,
                     "items": [{"position": p, "bytes": d.hex()} for p, d in items], "key": key.hex()})
        return key

    first = add(zero, [], [])
    add(zero, [1], [])
    second = add(first, list(range(256)), [])
    add(second, [0, 4294967295, 128256], [])
    add(second, [7, 7, 7, 7], [(0, b"\x01"), (3, bytes(range(64)))])
    add(second, [7, 7, 7, 7], [(0, b"\x02"), (3, bytes(range(64)))])
    add(bytes(range(32)), [9] * 4096, [(4095, b"image")])

    opaque = spec_bytes(b"model", b"", 2, 1, 256, 2, [(1, 0)], [], b"extras")
    canonical = spec_bytes(b"llama-3-8b", b"r1", 1, 1, 256, 3, [(1, 0), (2, 512)],
                           [(0, [(1, 3, 8, 128, 2048), (2, 3, 8, 128, 2048)]), (1, [(3, 2, 1, 576, 1152)])], b"")
    low, high = bytes([1] * 32), bytes([2] * 32)
    roots = []
    for name, spec, adapters, salt in [
            ("opaque", opaque, [], b""), ("opaque salted", opaque, [], b"tenant-a"),
            ("canonical", canonical, [], b""),
            ("adapters unordered, zero and minus zero dropped", opaque,
             [(high, 0.5), (low, 1.0), (low, 0.0), (high, -0.0)], b"s")]:
        roots.append({"name": name, "spec": spec.hex(), "adapters": [{"content": d.hex(), "scale": s} for d, s in adapters],
                      "salt": salt.hex(), "root": root_of(spec, adapters, salt).hex()})
    lines = [(name, ",\n".join("  " + json.dumps(e) for e in group)) for name, group in [("keys", keys), ("roots", roots)]]
    print("{" + ",\n".join('"%s": [\n%s\n]' % line for line in lines) + "}")


if __name__ == "__main__":
    main()
