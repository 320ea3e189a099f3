// Membership: which servers there are now, and which there were until lately. Fed by the options' addresses,
// a file and a name; a change makes new links and keeps those that stay.
//
// Nothing moves by a change: a former server is asked as well while its grace lasts, and then let go.
//
// Threads: every call from every thread. Files and names are read on the environment's connector.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/remote/server_link.h"

namespace terrace::remote {

// The servers at one moment. Never changed once shared.
struct ServerList {
  std::vector<std::shared_ptr<ServerLink>> current;
  std::vector<uint64_t> words;  // of `current`, for placement
  std::vector<std::shared_ptr<ServerLink>> former;

  std::vector<std::shared_ptr<ServerLink>> All() const;
  std::shared_ptr<ServerLink> Find(uint64_t serial) const;  // null: no longer known
};
using ServerListRef = std::shared_ptr<const ServerList>;

class Membership : public std::enable_shared_from_this<Membership> {
 public:
  explicit Membership(std::shared_ptr<LinkEnvironment> environment);

  // The options' addresses at once; file and name follow in the background, and are watched. An unreadable
  // file leaves what was known, and is said in the log.
  void Start();
  ServerListRef servers() const;
  // Links of these addresses from now on (those that do not parse, or must not be sent the token, are left
  // out and logged).
  void Set(const std::vector<std::string>& addresses);
  void Stop();
  // Lets go of every link.
  void Clear();
  // Looks at the file now, on this thread.
  void CheckFile();

 private:
  struct Former {
    std::shared_ptr<ServerLink> link;
    TimePoint until;
  };
  void WatchFile();
  void WatchName();
  void ResolveName();
  void Update();  // from what is known of all three sources
  void DropFormer();
  bool MayBeSent(const ServerAddress& address) const;
  void Log(LogLevel level, const std::string& message) const;

  const std::shared_ptr<LinkEnvironment> environment_;
  mutable std::mutex mutex_;
  ServerListRef servers_ = std::make_shared<ServerList>();
  std::vector<Former> former_;
  std::vector<std::string> from_file_;
  std::vector<std::string> from_name_;
  std::string file_text_;
  bool file_failed_ = false;
  bool name_failed_ = false;
  uint64_t next_serial_ = 1;
  bool is_stopped_ = false;
};

// The addresses of an address file: one a line, # begins a comment. kInvalidArgument names the line;
// kResourceExhausted: more than 256.
Result<std::vector<std::string>> ParseAddressFile(std::string_view text);

}  // namespace terrace::remote
