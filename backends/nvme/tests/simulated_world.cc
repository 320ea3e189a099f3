#include "backends/nvme/tests/simulated_world.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/base/check.h"

namespace terrace {
namespace {

constexpr uint64_t kOneInOf = 10'000;
constexpr uint64_t kAlignment = 4096;

uint64_t BytesOf(const IoRequest& request) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < request.num_memory; ++i) bytes += request.memory[i].iov_len;
  return bytes;
}

std::vector<std::byte> Gather(const IoRequest& request) {
  std::vector<std::byte> data(BytesOf(request));
  size_t at = 0;
  for (uint32_t i = 0; i < request.num_memory; ++i) {
    std::memcpy(data.data() + at, request.memory[i].iov_base, request.memory[i].iov_len);
    at += request.memory[i].iov_len;
  }
  return data;
}

bool IsAligned(const IoRequest& request) {
  bool aligned = request.offset % kAlignment == 0;
  for (uint32_t i = 0; i < request.num_memory; ++i) {
    aligned &= request.memory[i].iov_len % kAlignment == 0 &&
               reinterpret_cast<uintptr_t>(request.memory[i].iov_base) % kAlignment == 0;
  }
  return aligned;
}

}  // namespace

SimulatedWorld::SimulatedWorld(SimulatedWorldOptions options) : options_(options) {
  root_ = NewDirectory("/");
}

void SimulatedWorld::SetFaults(SimulatedPart part, FaultRates rates) {
  const std::lock_guard lock(mutex_);
  rates_[static_cast<size_t>(part)] = rates;
}

void SimulatedWorld::SetNoFaults() {
  SetFaults(SimulatedPart::kTier, {});
  SetFaults(SimulatedPart::kManifest, {});
}

uint64_t SimulatedWorld::life() const {
  const std::lock_guard lock(mutex_);
  return life_;
}

// Lives.

void SimulatedWorld::Freeze() {
  const std::lock_guard lock(mutex_);
  FreezeLocked();
}

void SimulatedWorld::FreezeAfter(uint64_t operations) {
  const std::lock_guard lock(mutex_);
  operations_left_ = operations;
  counted_thread_ = std::this_thread::get_id();
}

bool SimulatedWorld::frozen() const {
  const std::lock_guard lock(mutex_);
  return frozen_;
}

void SimulatedWorld::FreezeLocked() {
  if (std::exchange(frozen_, true)) return;
  operations_left_ = 0;
  for (auto& [request, flight] : in_flight_) {
    if (request->direction != IoDirection::kWrite) continue;
    flight.offset = request->offset;
    flight.data = Gather(*request);
  }
}

void SimulatedWorld::LosePower(LossStyle style) {
  const std::lock_guard lock(mutex_);
  FreezeLocked();
  for (auto& [request, flight] : in_flight_) {
    // Nobody was told that it is done, and no sync has covered it.
    if (style != LossStyle::kAll) flight.file->Write(flight.offset, flight.data);
  }
  for (auto& [name, tier] : root_->names) {
    if (tier.directory) Settle(*tier.directory, style);
    if (tier.directory) LoseBelow(*tier.directory);
  }
  NextLife();
}

void SimulatedWorld::Crash() {
  const std::lock_guard lock(mutex_);
  FreezeLocked();
  for (auto& [request, flight] : in_flight_) {
    if (flight.file->NextDraw() & 1) flight.file->Write(flight.offset, flight.data);
  }
  NextLife();
}

void SimulatedWorld::NextLife() {
  in_flight_.clear();
  locks_.clear();
  ++life_;
  frozen_ = false;
  operations_left_ = 0;
}

void SimulatedWorld::Settle(Directory& directory, LossStyle style) {
  // Also of files whose name is gone: the removal may be what is lost.
  std::set<SimulatedFile*> files;
  std::set<Directory*> directories;
  const auto collect = [&](const std::map<std::string, Node>& names) {
    for (const auto& [name, node] : names) {
      if (node.file) files.insert(node.file.get());
      if (node.directory) directories.insert(node.directory.get());
    }
  };
  collect(directory.names);
  collect(directory.durable_names);
  for (const NameChange& change : directory.changes) collect(change);
  for (SimulatedFile* file : files) file->Settle(style);
  for (Directory* below : directories) Settle(*below, style);
  if (directory.changes.empty()) return;
  const uint64_t draw = DrawOf(directory.stream, directory.ordinal++);
  size_t kept = directory.changes.size();
  if (style == LossStyle::kAll) kept = 0;
  if (style == LossStyle::kDrawn) kept = draw % 3 == 0 ? kept : DrawOf(draw, 1) % (kept + 1);
  for (size_t i = 0; i < kept; ++i) {
    for (auto& [name, node] : directory.changes[i]) {
      if (node) {
        directory.durable_names[name] = node;
      } else {
        directory.durable_names.erase(name);
      }
    }
  }
  directory.changes.clear();
}

void SimulatedWorld::LoseBelow(Directory& directory) {
  directory.names = directory.durable_names;
  for (auto& [name, node] : directory.names) {
    if (node.file) node.file->Lose();
    if (node.directory) LoseBelow(*node.directory);
  }
}

int SimulatedWorld::Enter(Caller who, bool* last) {
  *last = false;
  if (frozen_ || who.life != life_) return EIO;
  if (operations_left_ > 0 && counted_thread_ == std::this_thread::get_id()) *last = --operations_left_ == 0;
  return 0;
}

int SimulatedWorld::Leave(bool last, int error) {
  if (!last) return error;
  FreezeLocked();
  return EIO;
}

SimulatedWorld::Fault SimulatedWorld::DrawFault(Caller who, SimulatedFile& file, bool is_write,
                                                bool is_engine) const {
  const FaultRates& rates = rates_[static_cast<size_t>(who.part)];
  const std::array<std::pair<uint32_t, Fault>, 5> chances = {{
      {rates.io_error, Fault::kIoError},
      {is_write ? rates.no_space : 0, Fault::kNoSpace},
      {is_engine ? rates.short_transfer : 0, Fault::kShort},
      {is_engine ? rates.again : 0, Fault::kAgain},
      {is_engine ? rates.interrupted : 0, Fault::kInterrupted},
  }};
  uint64_t sum = 0;
  for (const auto& [rate, fault] : chances) sum += rate;
  if (sum == 0) return Fault::kNone;
  uint64_t draw = file.NextDraw() % kOneInOf;
  for (const auto& [rate, fault] : chances) {
    if (draw < rate) return fault;
    draw -= rate;
  }
  return Fault::kNone;
}

// Files.

SimulatedWorld::File SimulatedWorld::NewFile(const std::string& path) {
  std::shared_ptr<uint64_t>& ordinal = ordinals_[path];
  if (!ordinal) ordinal = std::make_shared<uint64_t>(0);
  return std::make_shared<SimulatedFile>(DrawOf(options_.seed, path), ordinal);
}

int SimulatedWorld::Open(Caller who, const std::string& path, FileOpen how, File* file) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  std::string name;
  const std::shared_ptr<Directory> parent = ParentOf(path, &name);
  if (!parent) return Leave(last, ENOENT);
  const auto found = parent->names.find(name);
  if (found != parent->names.end()) {
    if (how == FileOpen::kNew) return Leave(last, EEXIST);
    if (!found->second.file) return Leave(last, EISDIR);
    *file = found->second.file;
    return Leave(last, 0);
  }
  if (how == FileOpen::kExisting) return Leave(last, ENOENT);
  File made = NewFile(path);
  const Fault fault = DrawFault(who, *made, true, false);
  if (fault == Fault::kIoError) return Leave(last, EIO);
  if (fault == Fault::kNoSpace) return Leave(last, ENOSPC);
  Change(*parent, {{name, Node{.file = made}}});
  *file = std::move(made);
  return Leave(last, 0);
}

int SimulatedWorld::Size(Caller who, const File& file, uint64_t* bytes) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  *bytes = file->length();
  return Leave(last, 0);
}

int SimulatedWorld::Read(Caller who, const File& file, uint64_t offset, MutableBytes to, uint64_t* done) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  if (DrawFault(who, *file, false, false) == Fault::kIoError) return Leave(last, EIO);
  *done = file->Read(offset, to);
  return Leave(last, 0);
}

bool SimulatedWorld::HasRoom(uint64_t more) const {
  return options_.total_bytes >= uint64_t{1} << 50 || UsedIn(*root_) + more <= options_.total_bytes;
}

int SimulatedWorld::WriteLocked(Caller who, const File& file, uint64_t offset, Bytes from) {
  const uint64_t grown = file->charged_bytes_after(offset + from.size()) - file->charged_bytes();
  if (grown > 0 && !HasRoom(grown)) return ENOSPC;
  const Fault fault = DrawFault(who, *file, true, false);
  if (fault == Fault::kNone) {
    file->Write(offset, from);
    return 0;
  }
  file->Write(offset, from.first(file->NextDraw() % (from.size() + 1)));
  return fault == Fault::kNoSpace ? ENOSPC : EIO;
}

int SimulatedWorld::Write(Caller who, const File& file, uint64_t offset, Bytes from) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  return Leave(last, WriteLocked(who, file, offset, from));
}

int SimulatedWorld::Append(Caller who, const File& file, Bytes from) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  return Leave(last, WriteLocked(who, file, file->length(), from));
}

int SimulatedWorld::Allocate(Caller who, const File& file, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  const uint64_t held = file->charged_bytes();
  if (bytes > held && !HasRoom(bytes - held)) return Leave(last, ENOSPC);
  const Fault fault = DrawFault(who, *file, true, false);
  if (fault != Fault::kNone) return Leave(last, fault == Fault::kNoSpace ? ENOSPC : EIO);
  file->Allocate(bytes);
  return Leave(last, 0);
}

int SimulatedWorld::Truncate(Caller who, const File& file, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  if (DrawFault(who, *file, false, false) == Fault::kIoError) return Leave(last, EIO);
  file->Truncate(bytes);
  return Leave(last, 0);
}

int SimulatedWorld::WrittenBytes(Caller who, const File& file, uint64_t* bytes) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  *bytes = file->WrittenBytes();
  return Leave(last, 0);
}

int SimulatedWorld::Sync(Caller who, const File& file) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return error;
  if (last) return Leave(last, 0);  // the loss decides how far it came
  const uint32_t rate = rates_[static_cast<size_t>(who.part)].failed_sync;
  const bool failed = rate > 0 && file->NextDraw() % kOneInOf < rate;
  if (failed) {
    file->Settle(LossStyle::kDrawn);
    return EIO;
  }
  file->Sync();
  return 0;
}

// The engine.

void SimulatedWorld::BeginRequest(Caller who, IoRequest* request, const File& file, bool is_direct) {
  const std::lock_guard lock(mutex_);
  if (frozen_ || who.life != life_) return;
  const bool added = in_flight_.emplace(request, InFlight{file, is_direct, 0, {}}).second;
  TERRACE_CHECK(added) << "the request is in flight already";
}

int64_t SimulatedWorld::EndRequest(Caller who, IoRequest* request) {
  const std::lock_guard lock(mutex_);
  bool last;
  if (const int error = Enter(who, &last)) return -error;
  if (last) return -Leave(last, 0);  // still in flight when it happens
  auto flight = in_flight_.extract(request);
  TERRACE_CHECK(!flight.empty());
  return Transfer(who, *request, flight.mapped());
}

int64_t SimulatedWorld::Transfer(Caller who, const IoRequest& request, InFlight& flight) {
  if (flight.is_direct && !IsAligned(request)) return -EINVAL;
  const bool is_write = request.direction == IoDirection::kWrite;
  SimulatedFile& file = *flight.file;
  const Fault fault = DrawFault(who, file, is_write, true);
  if (fault == Fault::kAgain) return -EAGAIN;
  if (fault == Fault::kInterrupted) return -EINTR;
  uint64_t wanted = BytesOf(request);
  if (fault != Fault::kNone) wanted = file.NextDraw() % wanted;
  if (fault == Fault::kShort) wanted = std::max<uint64_t>(wanted, 1);  // nothing at all is not short
  if (is_write) {
    if (wanted > 0) {
      const std::vector<std::byte> data = Gather(request);
      const uint64_t grown = file.charged_bytes_after(request.offset + wanted) - file.charged_bytes();
      if (grown > 0 && !HasRoom(grown)) return -ENOSPC;
      file.Write(request.offset, Bytes(data).first(wanted));
    }
  } else {
    uint64_t done = 0;
    for (uint32_t i = 0; i < request.num_memory && done < wanted; ++i) {
      const uint64_t part = std::min<uint64_t>(request.memory[i].iov_len, wanted - done);
      const MutableBytes to(static_cast<std::byte*>(request.memory[i].iov_base), part);
      const uint64_t n = file.Read(request.offset + done, to);
      done += n;
      if (n < part) break;
    }
    wanted = done;
  }
  if (fault == Fault::kIoError) return -EIO;
  if (fault == Fault::kNoSpace) return -ENOSPC;
  return static_cast<int64_t>(wanted);
}

SimulatedWorld::Turn SimulatedWorld::NextTurn(Caller who, const File& file) {
  const std::lock_guard lock(mutex_);
  const uint32_t rate = rates_[static_cast<size_t>(who.part)].late;
  Turn turn{.delay = 0, .rank = file->NextDraw()};
  if (DrawOf(turn.rank, 1) % kOneInOf < rate) turn.delay = 1 + DrawOf(turn.rank, 2) % 12;
  return turn;
}

}  // namespace terrace
