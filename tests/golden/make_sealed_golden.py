#!/usr/bin/env python3
"""Writes sealed_v1.txt from the formats alone (backends/nvme/sealed_run.h, record_cipher.h, superblock.h), with the
`cryptography` package: an implementation of its own, so that the C++ one is not its own witness. The file never
changes; run it only where a version 2 is made.

    make_sealed_golden.py > sealed_v1.txt
"""
import hashlib
import hmac
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PIECE = 65536
MASTER = bytes(range(32))
DIRECTORY = bytes(range(100, 116))
SALT = bytes(range(200, 216))
KEY_ID = 7
GENERATION = 0x0102030405060708
RECORD_KEY = hashlib.sha256(b"chunk").digest() + struct.pack(">HH", 1, 0x0203)
FRAME = bytes((i * 31 + (i >> 8)) & 0xff for i in range(2 * PIECE + 8192))


def derive(salt, info):
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(MASTER)


def main():
    run_key = derive(SALT, b"terrace-object-1\0" + DIRECTORY + struct.pack("<Q", GENERATION) + RECORD_KEY)
    tags, ciphertext = b"", b""
    for piece in range((len(FRAME) + PIECE - 1) // PIECE):
        associated = RECORD_KEY + struct.pack("<QQQ", GENERATION, len(FRAME), piece)
        sealed = AESGCM(run_key).encrypt(struct.pack("<QI", piece, 0), FRAME[piece * PIECE:(piece + 1) * PIECE], associated)
        ciphertext += sealed[:-16]
        tags += sealed[-16:]
    nonce = bytes(range(50, 62))
    record_key = derive(DIRECTORY, b"terrace-record-1\0")
    record = struct.pack("<I", KEY_ID) + nonce + AESGCM(record_key).encrypt(nonce, b"tokens and items", RECORD_KEY)
    check = hmac.new(MASTER, b"terrace-key-check-1\0" + DIRECTORY, hashlib.sha256).digest()[:16]
    for name, value in [("run_key", run_key), ("tags", tags), ("ciphertext_begin", ciphertext[:64]),
                        ("ciphertext_end", ciphertext[-64:]), ("ciphertext_sha256", hashlib.sha256(ciphertext).digest()),
                        ("record", record), ("key_check", check)]:
        print(name, value.hex())


if __name__ == "__main__":
    main()
