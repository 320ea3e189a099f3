#include "terrace/remote_backend.h"

namespace terrace {

Status RemoteOptions::Validate() const { return OkStatus(); }

}  // namespace terrace
