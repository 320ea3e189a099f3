#include "terrace/status.h"

#include "lib/base/check.h"

namespace terrace {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "Ok";
    case StatusCode::kCancelled:
      return "Cancelled";
    case StatusCode::kUnknown:
      return "Unknown";
    case StatusCode::kInvalidArgument:
      return "InvalidArgument";
    case StatusCode::kDeadlineExceeded:
      return "DeadlineExceeded";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kAlreadyExists:
      return "AlreadyExists";
    case StatusCode::kPermissionDenied:
      return "PermissionDenied";
    case StatusCode::kResourceExhausted:
      return "ResourceExhausted";
    case StatusCode::kFailedPrecondition:
      return "FailedPrecondition";
    case StatusCode::kAborted:
      return "Aborted";
    case StatusCode::kOutOfRange:
      return "OutOfRange";
    case StatusCode::kUnimplemented:
      return "Unimplemented";
    case StatusCode::kInternal:
      return "Internal";
    case StatusCode::kUnavailable:
      return "Unavailable";
    case StatusCode::kDataLoss:
      return "DataLoss";
    case StatusCode::kUnauthenticated:
      return "Unauthenticated";
  }
  return "Unknown";  // a number from a newer peer
}

Status::Status(StatusCode code, std::string message) {
  if (code == StatusCode::kOk) return;
  rep_ = std::make_shared<const Rep>(Rep{code, std::move(message)});
}

std::string Status::ToString() const {
  std::string text(StatusCodeName(code()));
  if (!ok()) text.append(": ").append(message());
  return text;
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return Status();
  std::string text(context);
  text.append(": ").append(message());
  return Status(code(), std::move(text));
}

Status CancelledError(std::string message) { return Status(StatusCode::kCancelled, std::move(message)); }
Status InvalidArgumentError(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
Status DeadlineExceededError(std::string message) {
  return Status(StatusCode::kDeadlineExceeded, std::move(message));
}
Status NotFoundError(std::string message) { return Status(StatusCode::kNotFound, std::move(message)); }
Status AlreadyExistsError(std::string message) {
  return Status(StatusCode::kAlreadyExists, std::move(message));
}
Status ResourceExhaustedError(std::string message) {
  return Status(StatusCode::kResourceExhausted, std::move(message));
}
Status FailedPreconditionError(std::string message) {
  return Status(StatusCode::kFailedPrecondition, std::move(message));
}
Status UnimplementedError(std::string message) {
  return Status(StatusCode::kUnimplemented, std::move(message));
}
Status InternalError(std::string message) { return Status(StatusCode::kInternal, std::move(message)); }
Status UnavailableError(std::string message) { return Status(StatusCode::kUnavailable, std::move(message)); }
Status DataLossError(std::string message) { return Status(StatusCode::kDataLoss, std::move(message)); }

void DieOfBadResult(const Status& status) {
  // The check's destructor ends the process; a function that returns would break [[noreturn]].
  CheckFailure(__FILE__, __LINE__, "result.ok()").stream() << status.ToString();
  std::abort();
}

}  // namespace terrace
