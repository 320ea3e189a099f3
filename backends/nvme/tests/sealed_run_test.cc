// How a run is sealed and a manifest's value, against known answers, and that nothing opens but what was
// sealed, where it was sealed.
#include "backends/nvme/sealed_run.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>

#include "backends/nvme/record_cipher.h"
#include "backends/nvme/staging_pool.h"
#include "lib/wire/object_record.h"

namespace terrace {
namespace {

constexpr uint64_t kPiece = kSealedPieceBytes;

template <size_t N>
std::array<std::byte, N> Rising(int first) {
  std::array<std::byte, N> bytes;
  for (size_t i = 0; i < N; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

std::string Hex(Bytes bytes) {
  std::string hex;
  for (const std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<int>(byte) >> 4];
    hex += kDigits[static_cast<int>(byte) & 15];
  }
  return hex;
}

Bytes AsBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// tests/golden/make_sealed_golden.py made it, with another implementation.
std::map<std::string, std::string> Golden() {
  std::ifstream in(TERRACE_SOURCE_DIR "/tests/golden/sealed_v1.txt");
  std::map<std::string, std::string> golden;
  std::string name;
  while (in >> name) in >> golden[name];
  return golden;
}

const std::array<std::byte, 32> kMaster = Rising<32>(0);
const DirectoryId kDirectory = Rising<16>(100);
const ObjectSalt kSalt = Rising<16>(200);
constexpr uint64_t kFrameBytes = 2 * kPiece + 8192;

RunIdentity SampleRun(uint64_t frame_bytes = kFrameBytes) {
  return {kDirectory, {Sha256("chunk"), {1, 0x0203}}, 0x0102030405060708, frame_bytes};
}

std::vector<std::byte> SampleFrame(uint64_t frame_bytes = kFrameBytes) {
  std::vector<std::byte> frame(frame_bytes);
  for (size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(i * 31 + (i >> 8));
  return frame;
}

struct SealedFrame {
  RunIdentity run;
  CipherKey key;
  std::vector<std::byte> tags;
  std::vector<std::byte> ciphertext;

  // Opens a copy of `from`, which defaults to the piece itself.
  Status Open(uint64_t piece, std::vector<std::byte>* plain, Bytes from = {}) const {
    const uint64_t length = SealedPieceLength(run.frame_bytes, piece);
    if (from.empty()) from = Bytes(ciphertext).subspan(piece * kPiece, length);
    plain->assign(from.begin(), from.end());
    RunOpener opener(key, run);
    return opener.Open(piece, *plain, tags);
  }
};

SealedFrame Seal(const RunIdentity& run, Bytes frame, uint64_t step = UINT64_MAX,
                 const ObjectSalt& salt = kSalt) {
  SealedFrame sealed{run, DeriveRunKey(CipherKey(kMaster), salt, run),
                     std::vector<std::byte>(SealedTagAreaBytes(run.frame_bytes)),
                     std::vector<std::byte>(frame.size())};
  RunSealer sealer(sealed.key, run, sealed.tags);
  for (uint64_t at = 0; at < frame.size(); at += step) {
    EXPECT_FALSE(sealer.done());
    const uint64_t n = std::min<uint64_t>(step, frame.size() - at);
    sealer.Seal(frame.subspan(at, n), sealed.ciphertext.data() + at);
    if (n == frame.size() - at) break;
  }
  EXPECT_TRUE(sealer.done());
  return sealed;
}

TEST(SealedLayoutTest, LengthsFollowFromEachOther) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  EXPECT_EQ(SealedTagAreaBytes(4096), 4096u);
  EXPECT_EQ(SealedTagAreaBytes(16 * kMiB), 4096u);
  EXPECT_EQ(SealedTagAreaBytes(16 * kMiB + 4096), 8192u);
  EXPECT_EQ(RunBytes(8192, false), 4096u + 8192u);
  EXPECT_EQ(RunBytes(8192, true), 4096u + 4096u + 8192u);
  for (uint64_t frame = 4096; frame <= 70 * kMiB; frame += frame < kMiB ? 4096 : 1044480) {
    for (const bool sealed : {false, true})
      ASSERT_EQ(FrameBytesInRun(RunBytes(frame, sealed), sealed), frame);
  }
  for (const uint64_t tags : {1, 2, 3, 4}) {
    const uint64_t edge = tags * 16 * kMiB;
    for (const uint64_t frame : {edge - 4096, edge, edge + 4096}) {
      EXPECT_EQ(FrameBytesInRun(RunBytes(frame, true), true), frame);
    }
  }
}

TEST(AesGcmTest, KnownAnswer) {
  // Test case 16 of the GCM specification's AES-256 vectors (McGrew and Viega).
  const std::string key = FromHex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308");
  const std::string plain = FromHex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525"
      "b16aedf5aa0de657ba637b39");
  const std::string associated = FromHex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  GcmNonce nonce;
  std::memcpy(nonce.data(), FromHex("cafebabefacedbaddecaf888").data(), nonce.size());
  std::array<std::byte, 32> key_bytes;
  std::memcpy(key_bytes.data(), key.data(), key_bytes.size());
  GcmStream seal(GcmStream::Direction::kSeal, CipherKey(key_bytes));
  std::vector<std::byte> out(plain.size());
  seal.Begin(nonce, AsBytes(associated));
  seal.Update(AsBytes(plain), out.data());
  const GcmTag tag = seal.FinishSeal();
  EXPECT_EQ(Hex(out),
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
            "c5f61e6393ba7a0abcc9f662");
  EXPECT_EQ(Hex(tag), "76fc6ece0f4e1768cddf8853bb2d551b");
  GcmStream open(GcmStream::Direction::kOpen, CipherKey(key_bytes));
  open.Begin(nonce, AsBytes(associated));
  open.Update(out, out.data());
  EXPECT_TRUE(open.FinishOpen(tag));
  EXPECT_EQ(Hex(out), Hex(AsBytes(plain)));
  open.Begin(nonce, AsBytes(associated).first(19));
  open.Update(out, out.data());
  EXPECT_FALSE(open.FinishOpen(tag));
}

TEST(SealedRunTest, KnownAnswer) {
  const std::map<std::string, std::string> golden = Golden();
  ASSERT_EQ(golden.size(), 7u);
  const SealedFrame sealed = Seal(SampleRun(), SampleFrame());
  EXPECT_EQ(Hex(sealed.key.bytes()), golden.at("run_key"));
  EXPECT_EQ(Hex(Bytes(sealed.tags).first(48)), golden.at("tags"));
  EXPECT_EQ(Hex(Bytes(sealed.ciphertext).first(64)), golden.at("ciphertext_begin"));
  EXPECT_EQ(Hex(Bytes(sealed.ciphertext).last(64)), golden.at("ciphertext_end"));
  const std::string_view all(reinterpret_cast<const char*>(sealed.ciphertext.data()),
                             sealed.ciphertext.size());
  EXPECT_EQ(Sha256(all).ToHex(), golden.at("ciphertext_sha256"));
  EXPECT_EQ(Hex(CheckOf(7, CipherKey(kMaster), kDirectory).check), golden.at("key_check"));
}

TEST(SealedRunTest, OpensToWhatWasSealedHoweverItWasCut) {
  for (const uint64_t frame_bytes : {uint64_t{4096}, kPiece, kPiece + 4096, 3 * kPiece - 4096}) {
    SCOPED_TRACE(frame_bytes);
    const std::vector<std::byte> frame = SampleFrame(frame_bytes);
    const SealedFrame whole = Seal(SampleRun(frame_bytes), frame);
    for (const uint64_t step : {uint64_t{4096}, uint64_t{12288}, kPiece, kPiece + 4096}) {
      const SealedFrame cut = Seal(SampleRun(frame_bytes), frame, step);
      EXPECT_EQ(cut.ciphertext, whole.ciphertext);
      EXPECT_EQ(cut.tags, whole.tags);
    }
    for (uint64_t piece = 0; piece < SealedPieces(frame_bytes); ++piece) {
      std::vector<std::byte> plain;
      ASSERT_TRUE(whole.Open(piece, &plain).ok());
      EXPECT_TRUE(std::equal(plain.begin(), plain.end(), frame.begin() + piece * kPiece));
    }
    EXPECT_EQ(Bytes(whole.tags).last(16).front(), frame_bytes < 16 * kPiece ? std::byte{0} : std::byte{1});
  }
}

TEST(SealedRunTest, AFlippedBitOfTagOrCiphertextDoesNotOpen) {
  const std::vector<std::byte> frame = SampleFrame();
  SealedFrame sealed = Seal(SampleRun(), frame);
  std::vector<std::byte> plain;
  for (uint64_t piece = 0; piece < 3; ++piece) {
    for (size_t bit = 0; bit < 128; ++bit) {
      std::byte& byte = sealed.tags[piece * 16 + bit / 8];
      byte ^= static_cast<std::byte>(1 << (bit % 8));
      ASSERT_EQ(sealed.Open(piece, &plain).code(), StatusCode::kDataLoss) << piece << " bit " << bit;
      byte ^= static_cast<std::byte>(1 << (bit % 8));
    }
  }
  // Every bit of the short piece.
  for (size_t bit = 0; bit < 8192 * 8; ++bit) {
    std::byte& byte = sealed.ciphertext[2 * kPiece + bit / 8];
    byte ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_EQ(sealed.Open(2, &plain).code(), StatusCode::kDataLoss) << "bit " << bit;
    byte ^= static_cast<std::byte>(1 << (bit % 8));
  }
  ASSERT_TRUE(sealed.Open(2, &plain).ok()) << "all of it is as it was";
}

TEST(SealedRunTest, APieceOpensAtItsOwnPlaceOnly) {
  const std::vector<std::byte> frame = SampleFrame();
  SealedFrame sealed = Seal(SampleRun(), frame);
  std::vector<std::byte> plain;
  const Bytes first = Bytes(sealed.ciphertext).first(kPiece);
  ASSERT_TRUE(sealed.Open(0, &plain, first).ok());
  EXPECT_FALSE(sealed.Open(1, &plain, first).ok()) << "with the other's tag";
  std::swap_ranges(sealed.tags.begin(), sealed.tags.begin() + 16, sealed.tags.begin() + 16);
  EXPECT_FALSE(sealed.Open(1, &plain, first).ok()) << "with its own tag";
}

TEST(SealedRunTest, ARunOfAnotherIdentityDoesNotOpen) {
  const std::vector<std::byte> frame = SampleFrame();
  const SealedFrame sealed = Seal(SampleRun(), frame);
  const std::vector<std::pair<const char*, std::function<void(RunIdentity&)>>> others = {
      {"object", [](RunIdentity& run) { run.id.key.bytes[31] ^= std::byte{1}; }},
      {"group", [](RunIdentity& run) { ++run.id.part.group; }},
      {"shard", [](RunIdentity& run) { ++run.id.part.shard; }},
      {"generation", [](RunIdentity& run) { ++run.generation; }},
      {"frame length", [](RunIdentity& run) { run.frame_bytes += 4096; }},
  };
  for (const auto& [what, change] : others) {
    SCOPED_TRACE(what);
    // Under the same run key: what is authenticated with a piece differs.
    RunIdentity other = SampleRun();
    change(other);
    std::vector<std::byte> piece(sealed.ciphertext.begin(), sealed.ciphertext.begin() + kPiece);
    RunOpener opener(sealed.key, other);
    EXPECT_EQ(opener.Open(0, piece, sealed.tags).code(), StatusCode::kDataLoss);
  }
  // Run keys are one for each directory, salt, master, object and generation.
  const CipherKey master(kMaster);
  RunIdentity elsewhere = SampleRun();
  elsewhere.directory[0] ^= std::byte{1};
  std::vector<std::string> keys = {Hex(sealed.key.bytes()),
                                   Hex(DeriveRunKey(master, kSalt, elsewhere).bytes()),
                                   Hex(DeriveRunKey(master, Rising<16>(1), SampleRun()).bytes()),
                                   Hex(DeriveRunKey(CipherKey(Rising<32>(1)), kSalt, SampleRun()).bytes())};
  for (size_t i = 0; i < 4; ++i) {
    RunIdentity other = SampleRun();
    others[i].second(other);
    keys.push_back(Hex(DeriveRunKey(master, kSalt, other).bytes()));
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
}

TEST(SealedRunTest, SaltsDiffer) {
  const ObjectSalt first = NewSalt().value();
  const ObjectSalt second = NewSalt().value();
  EXPECT_NE(first, second);
  EXPECT_NE(Seal(SampleRun(4096), SampleFrame(4096), UINT64_MAX, first).ciphertext,
            Seal(SampleRun(4096), SampleFrame(4096), UINT64_MAX, second).ciphertext);
}

KeyRing RingOf(std::vector<std::pair<uint32_t, int>> keys) {
  std::vector<EncryptionKey> given;
  for (const auto& [id, first] : keys) given.push_back({id, Rising<32>(first)});
  return KeyRing(given);
}

TEST(RecordCipherTest, KnownAnswerAndRoundTrip) {
  const RecordCipher cipher(RingOf({{7, 0}}), kDirectory);
  const std::string record_key = EncodeRecordKey(SampleRun().id);
  const Result<std::string> known = cipher.Open(record_key, FromHex(Golden().at("record")));
  ASSERT_TRUE(known.ok()) << known.status().ToString();
  EXPECT_EQ(*known, "tokens and items");
  for (const std::string& value : {std::string(), std::string("x"), std::string(5000, 'y')}) {
    const std::string sealed = cipher.Seal(record_key, value).value();
    EXPECT_EQ(sealed.size(), value.size() + RecordCipher::kExtraBytes);
    EXPECT_EQ(cipher.Open(record_key, sealed).value(), value);
    EXPECT_NE(cipher.Seal(record_key, value).value(), sealed) << "a nonce of its own";
  }
}

TEST(RecordCipherTest, NothingElseOpens) {
  const RecordCipher cipher(RingOf({{7, 0}}), kDirectory);
  const std::string sealed = cipher.Seal("key", "some tokens").value();
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::string broken = sealed;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_EQ(cipher.Open("key", broken).status().code(), StatusCode::kDataLoss) << "bit " << bit;
  }
  for (size_t n = 0; n < sealed.size(); ++n) EXPECT_FALSE(cipher.Open("key", sealed.substr(0, n)).ok());
  EXPECT_FALSE(cipher.Open("kex", sealed).ok()) << "under another record's key";
  EXPECT_FALSE(RecordCipher(RingOf({{7, 1}}), kDirectory).Open("key", sealed).ok());
  EXPECT_FALSE(RecordCipher(RingOf({{7, 0}}), Rising<16>(1)).Open("key", sealed).ok());
}

TEST(RecordCipherTest, TheNewestKeySealsAndAllOpen) {
  const RecordCipher before(RingOf({{1, 10}}), kDirectory);
  const RecordCipher after(RingOf({{1, 10}, {2, 20}}), kDirectory);
  const std::string old_value = before.Seal("key", "old").value();
  const std::string new_value = after.Seal("key", "new").value();
  EXPECT_EQ(after.Open("key", old_value).value(), "old");
  EXPECT_EQ(after.Open("key", new_value).value(), "new");
  EXPECT_FALSE(before.Open("key", new_value).ok());
}

TEST(SealedRunTest, AScanOpensTheHeaderAreaAndNothingElse) {
  const KeyRing keys = RingOf({{7, 0}});
  const std::vector<std::byte> frame = SampleFrame();
  const SealedFrame sealed = Seal(SampleRun(), frame);
  PeekedTierPage page;
  page.header_bytes = kPiece + 4096;  // reaches into the second piece
  page.fields.directory = kDirectory;
  page.fields.generation = sealed.run.generation;
  page.fields.frame_bytes = kFrameBytes;
  page.fields.sealed = true;
  page.fields.key_id = 7;
  page.fields.salt = kSalt;
  page.fields.id = sealed.run.id;
  std::vector<std::byte> run(FrameOffsetInRun(kFrameBytes, true) + kFrameBytes);
  std::copy(sealed.tags.begin(), sealed.tags.end(), run.begin() + kTierPageBytes);
  std::copy(sealed.ciphertext.begin(), sealed.ciphertext.end(),
            run.begin() + FrameOffsetInRun(kFrameBytes, true));
  bool can_read = true;
  const auto open = [&] {
    return OpenHeaderArea(page, keys, [&](uint64_t run_offset, MutableBytes to) {
      std::copy_n(run.begin() + static_cast<ptrdiff_t>(run_offset), to.size(), to.begin());
      return can_read;
    });
  };
  const Result<std::vector<std::byte>> header = open();
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  ASSERT_EQ(header->size(), page.header_bytes);
  EXPECT_TRUE(std::equal(header->begin(), header->end(), frame.begin()));
  std::byte& in_second_piece = run[FrameOffsetInRun(kFrameBytes, true) + 2 * kPiece - 1];
  in_second_piece ^= std::byte{1};
  EXPECT_EQ(open().status().code(), StatusCode::kDataLoss) << "all of a piece that the header is in";
  in_second_piece ^= std::byte{1};
  run.back() ^= std::byte{1};
  EXPECT_TRUE(open().ok()) << "and no other";
  can_read = false;
  EXPECT_EQ(open().status().code(), StatusCode::kDataLoss);
  can_read = true;
  page.fields.key_id = 8;
  EXPECT_EQ(open().status().code(), StatusCode::kDataLoss);
  page.fields.key_id = 7;
  page.header_bytes = 2u << 20;
  EXPECT_EQ(open().status().code(), StatusCode::kDataLoss) << "bounded";
}

TEST(StagingPoolTest, BlocksAreUsedAgainAndWhatIsKeptIsBounded) {
  StagingPool pool(192 * 1024);
  EXPECT_EQ(pool.held_bytes(), 0u);
  StagedMemory first = pool.Take(100 * 1024);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first.get()) % kFrameAlignment, 0u);
  EXPECT_EQ(pool.held_bytes(), 128u * 1024);
  StagedMemory second = pool.Take(128 * 1024);
  EXPECT_NE(first.get(), second.get());
  const std::byte* before = first.get();
  first.reset();
  first = pool.Take(65 * 1024);
  EXPECT_EQ(first.get(), before);
  first.reset();
  second.reset();  // beyond what is kept
  EXPECT_EQ(pool.held_bytes(), 128u * 1024);
  StagedMemory outlives;
  {
    StagingPool other(0);
    outlives = other.Take(1);
    outlives.get()[4095] = std::byte{1};
  }
  EXPECT_EQ(outlives.get()[4095], std::byte{1});
}

}  // namespace
}  // namespace terrace
