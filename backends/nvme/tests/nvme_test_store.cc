#include "backends/nvme/tests/nvme_test_store.h"

#include <sys/stat.h>

#include "backends/nvme/nvme_core.h"
#include "tests/conformance/wire_header.h"

namespace terrace {
namespace {

class FaultyEngine : public IoEngine {
 public:
  FaultyEngine(std::unique_ptr<IoEngine> base, std::shared_ptr<EngineFaults> faults)
      : base_(std::move(base)), faults_(std::move(faults)) {
    faults_->engine = this;
  }
  ~FaultyEngine() override {
    const std::lock_guard lock(faults_->mutex);
    faults_->engine = nullptr;
  }
  IoEngineMode mode() const override { return base_->mode(); }
  void RegisterMemory(std::span<const MemoryRegion> regions) override { base_->RegisterMemory(regions); }
  void AddFile(int fd) override { base_->AddFile(fd); }
  void RemoveFile(int fd) override { base_->RemoveFile(fd); }
  void Start(IoRequest* request) override {
    const std::lock_guard lock(faults_->mutex);
    if (faults_->start) faults_->start(*request);
    base_->Start(request);
  }
  void Wait(std::optional<Duration> timeout, std::vector<IoCompletion>* completions) override {
    std::vector<IoCompletion> fresh;
    base_->Wait(timeout, &fresh);
    const std::lock_guard lock(faults_->mutex);
    if (!faults_->hold) {
      completions->insert(completions->end(), faults_->held.begin(), faults_->held.end());
      faults_->held.clear();
    }
    for (IoCompletion& completion : fresh) {
      if (faults_->change) faults_->change(completion);
      const bool held = faults_->hold && faults_->hold(completion);
      (held ? faults_->held : *completions).push_back(completion);
    }
  }
  void Wake() override { base_->Wake(); }

 private:
  std::unique_ptr<IoEngine> base_;
  std::shared_ptr<EngineFaults> faults_;
};

}  // namespace

void EngineFaults::Release() {
  const std::lock_guard lock(mutex);
  hold = nullptr;
  if (engine) engine->Wake();
}

size_t EngineFaults::num_held() {
  const std::lock_guard lock(mutex);
  return held.size();
}

IoEngineFactory MakeFaultyEngine(std::shared_ptr<EngineFaults> faults, IoEngineFactory base_factory) {
  return [faults, base_factory](uint32_t depth) -> Result<std::unique_ptr<IoEngine>> {
    Result<std::unique_ptr<IoEngine>> base = base_factory(depth);
    if (!base.ok()) return base.status();
    return std::unique_ptr<IoEngine>(std::make_unique<FaultyEngine>(std::move(*base), faults));
  };
}

NvmeOptions NvmeTestStore::options() const {
  NvmeOptions options;
  options.directory = path().string();
  options.capacity_bytes = 128 * kMiB;
  options.segment_bytes = 16 * kMiB;
  options.prepare_ahead_bytes = 0;  // a test of it asks for it
  options.keys = keys;
  return options;
}

Status NvmeTestStore::TryOpen(const NvmeOptions& options, IoEngineFactory engine) {
  return TryAttach(engine ? MakeNvmeBackendWithEngine(options, std::move(engine)) : MakeNvmeBackend(options));
}

Status NvmeTestStore::TryAttach(Result<std::unique_ptr<Backend>> made, std::vector<MemoryRegion> regions) {
  if (!made.ok()) return made.status();
  backend_ = std::move(*made);
  metrics_ = std::make_unique<MetricRegistry>();
  return backend_->Attach({clock_, metrics_.get(), log_.get(), std::move(regions)});
}

int64_t NvmeTestStore::IoMode(const std::string& mode, const std::string& direct,
                              const std::string& registered) const {
  return metrics_->Value(
      "terrace_nvme_io_mode",
      {{"backend", "nvme"}, {"mode", mode}, {"direct", direct}, {"registered", registered}});
}

void NvmeTestStore::Open(uint64_t capacity_bytes, IoEngineFactory engine) {
  NvmeOptions wanted = options();
  wanted.capacity_bytes = capacity_bytes;
  const Status status = TryOpen(wanted, std::move(engine));
  ASSERT_TRUE(status.ok()) << status.ToString();
}

void NvmeTestStore::Close() {
  const Status status = backend_->Close();
  EXPECT_TRUE(status.ok()) << status.ToString();
  backend_.reset();
}

Status NvmeTestStore::Put(const TestObject& object) {
  Answers<Status> answers;
  std::vector<PutOp> ops;
  ops.push_back(PutOpOf(object));
  backend_->Put(std::move(ops), answers.Callback());
  return answers.Wait().at(0);
}

GetResult NvmeTestStore::Get(const TestObject& object, BufferRef* dst) {
  BufferRef own = MakeTestBuffer(object.meta.frame_bytes);
  if (dst) *dst = own;
  Answers<GetResult> answers;
  std::vector<GetOp> ops;
  ops.push_back(GetOpOf(object, own));
  backend_->Get(std::move(ops), answers.Callback());
  return answers.Wait().at(0);
}

Status NvmeTestStore::Erase(const ObjectId& id, EraseMode mode) {
  Answers<Status> answers;
  backend_->Erase({id}, mode, answers.Callback());
  return answers.Wait().at(0);
}

Status NvmeTestStore::Clear() {
  Answers<Status> answers;
  backend_->Clear([callback = answers.Callback()](const Status& status) { callback({&status, 1}); });
  return answers.Wait().at(0);
}

Status NvmeTestStore::Flush() {
  Answers<Status> answers;
  backend_->Flush([callback = answers.Callback()](const Status& status) { callback({&status, 1}); });
  return answers.Wait().at(0);
}

void NvmeTestStore::ExpectHas(const TestObject& object) {
  BufferRef dst;
  const GetResult result = Get(object, &dst);
  ASSERT_TRUE(result.status.ok()) << result.status.ToString();
  EXPECT_EQ(result.frame_bytes, object.meta.frame_bytes);
  EXPECT_TRUE(object.Holds(dst));
}

uint64_t NvmeTestStore::BytesOnDisk() const {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path())) {
    struct stat facts {};
    // RocksDB removes files while we look.
    if (lstat(entry.path().c_str(), &facts) == 0) bytes += static_cast<uint64_t>(facts.st_blocks) * 512;
  }
  return bytes;
}

TestObject MakeNvmeObject(uint64_t seed, uint64_t frame_bytes, uint64_t version) {
  return MakeTestObject(seed, frame_bytes, WriteWireHeader, version);
}

}  // namespace terrace
