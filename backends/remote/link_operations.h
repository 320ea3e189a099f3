// What is asked of one server beside bytes: each a call or two, its answer checked before anybody uses it.
//
// `done` once, on a thread of gRPC or the timers, or inside the call where the server is given up.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/remote/server_link.h"

namespace terrace::remote {

using LinkRef = std::shared_ptr<ServerLink>;

void StartMatch(const LinkRef& link, const PrefixQuery& query, MatchDone done);
// One bool per id; all false with an error.
void StartHave(const LinkRef& link, const std::vector<ObjectId>& ids, TimePoint deadline,
               std::function<void(const Status&, std::vector<bool>)> done);
void StartErase(const LinkRef& link, const std::vector<ObjectId>& ids, EraseMode mode, EraseDone done);
void StartClear(const LinkRef& link, StatusDone done);
void StartFlush(const LinkRef& link, StatusDone done);
void StartScan(const LinkRef& link, const std::string& cursor, size_t limit, ScanDetail detail,
               std::function<void(Result<ScanPage>)> done);
void StartListRoots(const LinkRef& link, std::function<void(Result<std::vector<RootRecord>>)> done);

}  // namespace terrace::remote
