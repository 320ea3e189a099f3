#include "lib/storage/guarded_callbacks.h"

#include <utility>

namespace terrace {
namespace {

template <typename Answer, typename Call>
Answer Guarded(Counter* exceptions, Answer otherwise, const Call& call) {
  try {
    return call();
  } catch (...) {
    exceptions->Add();
    return otherwise;
  }
}

template <typename Call>
void Guarded(Counter* exceptions, const Call& call) {
  try {
    call();
  } catch (...) {
    exceptions->Add();
  }
}

class GuardedPolicy final : public EvictionPolicy {
 public:
  GuardedPolicy(std::unique_ptr<EvictionPolicy> policy, Counter* exceptions)
      : policy_(std::move(policy)), exceptions_(exceptions) {}

  void Insert(const ObjectId& id, uint64_t bytes) override {
    Guarded(exceptions_, [&] { policy_->Insert(id, bytes); });
  }
  void Touch(const ObjectId& id) override {
    Guarded(exceptions_, [&] { policy_->Touch(id); });
  }
  void Remove(const ObjectId& id) override {
    Guarded(exceptions_, [&] { policy_->Remove(id); });
  }
  std::optional<ObjectId> Victim(const std::function<bool(const ObjectId&)>& allowed) override {
    return Guarded(exceptions_, std::optional<ObjectId>(), [&] { return policy_->Victim(allowed); });
  }
  uint64_t Heat(const ObjectId& id) const override {
    return Guarded(exceptions_, uint64_t{0}, [&] { return policy_->Heat(id); });
  }

 private:
  const std::unique_ptr<EvictionPolicy> policy_;
  Counter* const exceptions_;
};

class GuardedLogSink final : public LogSink {
 public:
  GuardedLogSink(std::shared_ptr<LogSink> log, std::shared_ptr<MetricRegistry> metrics, Counter* exceptions)
      : log_(std::move(log)), metrics_(std::move(metrics)), exceptions_(exceptions) {}

  void Log(LogLevel level, std::string_view component, std::string_view message) override {
    Guarded(exceptions_, [&] { log_->Log(level, component, message); });
  }

 private:
  const std::shared_ptr<LogSink> log_;
  const std::shared_ptr<MetricRegistry> metrics_;
  Counter* const exceptions_;
};

}  // namespace

std::unique_ptr<EvictionPolicy> GuardPolicy(std::unique_ptr<EvictionPolicy> policy, Counter* exceptions) {
  return std::make_unique<GuardedPolicy>(std::move(policy), exceptions);
}

std::shared_ptr<LogSink> GuardLogSink(std::shared_ptr<LogSink> log, std::shared_ptr<MetricRegistry> metrics,
                                      Counter* exceptions) {
  return std::make_shared<GuardedLogSink>(std::move(log), std::move(metrics), exceptions);
}

}  // namespace terrace
