// ShmPath: the data path to a server on this host. A get is one copy out of the server's pool into the
// landing, a put one copy into the staging area; a ShmView is a frame that is read where it lies.
//
// A frame in the pool is the server's: while the place's lease holds, the server keeps it; after that its
// memory may be another frame's at any moment. So the place's generation is looked at before the first byte
// and again after each step, before the step's bytes are reported: what changed under the copy is a miss,
// never an answer.
//
// Steps: bytes that are watched (hashed as they land) are copied through the cache in steps that fit it;
// others go around it.
//
// Threads: every call from every thread; copies run on one or two threads of the path, callbacks too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "backends/remote/data_path.h"
#include "backends/remote/shm_mapping.h"

namespace terrace::remote {

struct ShmPathOptions {
  std::shared_ptr<ShmMapping> mapping;
  std::shared_ptr<LandingTable> landings;
  // Gives places back to the server (Release), many at once; on a thread of the path, without a lock.
  std::function<void(std::vector<uint64_t> places)> release_places;
  // Takes the puts that the server had no staging for; null: they are told kResourceExhausted.
  std::shared_ptr<DataPath> unstaged;
  uint32_t threads = 2;        // 1..2
  size_t max_queued = 65'536;  // copies that wait; above it kResourceExhausted on the calling thread
};

// A frame where it lies in the server's pool, kept there by the server until the view ends, or the place's
// lease does. The bytes count only where IsStillValid says so after they were read.
class ShmView {
 public:
  ShmView();
  ShmView(ShmView&&) noexcept;
  ShmView& operator=(ShmView&&) noexcept;
  ~ShmView();  // the place is given back with the path's next batch

  Bytes bytes() const { return bytes_; }
  bool IsStillValid() const;

 private:
  friend class ShmPath;
  struct Held;
  std::unique_ptr<Held> held_;
  Bytes bytes_;
};

class ShmPath;
class ShmPath final : public DataPath {
 public:
  static std::shared_ptr<ShmPath> Start(ShmPathOptions options);
  ~ShmPath() override;

  std::string_view name() const override { return "shm"; }
  Status status() const override;
  bool uses_streams() const override { return false; }
  bool commits_after_sent() const override { return true; }
  void OnGetResult(uint64_t transfer, const v1::GetResult& result) override;
  void SendPut(const v1::PutNeed& need, BufferRef frame, uint64_t frame_bytes,
               std::function<void(const Status&)> sent) override;
  // One that is being copied ends with its copy: until `sent` the server must not be told to drop the
  // transfer, or its staging is another's while it is still written.
  void CancelPut(uint64_t transfer) override;
  // What waits ends with kCancelled. Called on a thread of the path, it does not wait for it.
  void Close() override;

  // kNotFound: the place is another frame's already. kDataLoss: no frame can lie there.
  Result<ShmView> View(const v1::GetResult& result);

 private:
  friend class ShmView;
  struct State;
  explicit ShmPath(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;  // shared with its threads and views
};

}  // namespace terrace::remote
