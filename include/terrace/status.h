// Status and Result<T>: how every fallible call of Terrace reports. A Status is a code and a
// message; OK carries none and allocates nothing. Both are safe to copy and to move between
// threads; a single object is not safe for concurrent writes. Ignoring one does not compile
// without a warning ([[nodiscard]]). No exception crosses a public header.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "terrace/export.h"

namespace terrace {

// Values are those of gRPC's canonical codes, so that a wire carries them unchanged.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,  // bad option or spec: field, value and what is allowed
  kDeadlineExceeded = 4,
  kNotFound = 5,  // absent; where absence is normal it is not reported as an error
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,  // pool empty, queue full, quota reached: skip caching, go on
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,  // device or peer failing for now
  kDataLoss = 15,     // magic, version, length, checksum or identity wrong
  kUnauthenticated = 16,
};

// The code's name as in the enum, without the k ("DataLoss").
TERRACE_API std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] TERRACE_API Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message);

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  // Empty for OK. Valid while this object (or a copy) lives.
  std::string_view message() const { return rep_ ? std::string_view(rep_->message) : ""; }
  // "DataLoss: message", or "Ok".
  std::string ToString() const;
  // The same code with "context: " in front of the message; OK stays OK.
  Status WithContext(std::string_view context) const;
  // For the rare place where a status is dropped on purpose; the reason is a comment beside it.
  void IgnoreError() const {}

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status OkStatus() { return Status(); }
TERRACE_API Status CancelledError(std::string message);
TERRACE_API Status InvalidArgumentError(std::string message);
TERRACE_API Status DeadlineExceededError(std::string message);
TERRACE_API Status NotFoundError(std::string message);
TERRACE_API Status AlreadyExistsError(std::string message);
TERRACE_API Status ResourceExhaustedError(std::string message);
TERRACE_API Status FailedPreconditionError(std::string message);
TERRACE_API Status UnimplementedError(std::string message);
TERRACE_API Status InternalError(std::string message);
TERRACE_API Status UnavailableError(std::string message);
TERRACE_API Status DataLossError(std::string message);

// Ends the process with the status; called where a Result without value is dereferenced.
[[noreturn]] TERRACE_API void DieOfBadResult(const Status& status);

// A T or the reason why there is none. Reading the value of a failed Result ends the process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: converts on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: converts on purpose
    if (status_.ok()) DieOfBadResult(Status(StatusCode::kInternal, "Result made from OK"));
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    Check();
    return *value_;
  }
  const T& value() const& {
    Check();
    return *value_;
  }
  T&& value() && {
    Check();
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Check() const {
    if (!value_.has_value()) DieOfBadResult(status_);
  }
  Status status_;
  std::optional<T> value_;
};

}  // namespace terrace
