#include "backends/remote/membership.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "backends/remote/placement.h"

namespace terrace::remote {
namespace {

constexpr size_t kMaxServers = 256;
constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr Duration kFilePause = std::chrono::seconds(1);
constexpr Duration kNamePause = std::chrono::seconds(30);

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return UnavailableError(path + " cannot be read");
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return UnavailableError(path + " cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) return InvalidArgumentError(path + " has more than 1 MiB");
  return text;
}

Result<std::vector<std::string>> Resolve(const ServerAddress& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(name.host.c_str(), nullptr, &hints, &found); error != 0)
    return UnavailableError(name.host + ": " + gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  std::set<std::string> texts;  // in one order, however the answer was turned
  for (const addrinfo* at = found; at != nullptr && texts.size() < kMaxServers; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
      continue;
    const std::string host = at->ai_family == AF_INET6 ? "[" + std::string(text) + "]" : text;
    texts.insert(host + ":" + std::to_string(name.port));
  }
  return std::vector<std::string>(texts.begin(), texts.end());
}

}  // namespace

std::vector<std::shared_ptr<ServerLink>> ServerList::All() const {
  std::vector<std::shared_ptr<ServerLink>> all = current;
  all.insert(all.end(), former.begin(), former.end());
  return all;
}

std::shared_ptr<ServerLink> ServerList::Find(uint64_t serial) const {
  for (const auto* links : {&current, &former}) {
    for (const auto& link : *links) {
      if (link->serial() == serial) return link;
    }
  }
  return nullptr;
}

Result<std::vector<std::string>> ParseAddressFile(std::string_view text) {
  std::vector<std::string> addresses;
  std::set<std::string> seen;
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front()))) line.remove_prefix(1);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.remove_suffix(1);
    if (line.empty()) continue;
    const Result<ServerAddress> address = ParseServerAddress(line);
    if (!address.ok()) return address.status().WithContext("line " + std::to_string(number));
    if (!seen.insert(address->text).second) continue;
    if (addresses.size() == kMaxServers) return ResourceExhaustedError("more than 256 addresses");
    addresses.push_back(address->text);
  }
  return addresses;
}

Membership::Membership(std::shared_ptr<LinkEnvironment> environment) : environment_(std::move(environment)) {}

void Membership::Log(LogLevel level, const std::string& message) const {
  environment_->log->Log(level, "remote", message);
}

void Membership::Start() {
  Update();
  if (!environment_->options.address_file.empty()) WatchFile();
  if (!environment_->options.dns_name.empty()) WatchName();
}

ServerListRef Membership::servers() const {
  std::lock_guard lock(mutex_);
  return servers_;
}

void Membership::WatchFile() {
  environment_->connector->Post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->CheckFile();
    self->environment_->timers->After(kFilePause, [weak] {
      if (const auto again = weak.lock()) again->WatchFile();
    });
  });
}

// The file is small and read whole: times of change are too coarse to rely on.
void Membership::CheckFile() {
  const std::string& path = environment_->options.address_file;
  Result<std::string> text = ReadFile(path);
  Result<std::vector<std::string>> addresses = std::vector<std::string>();
  if (text.ok()) {
    std::lock_guard lock(mutex_);
    if (*text == file_text_ && !file_failed_) return;
  }
  addresses = text.ok() ? ParseAddressFile(*text) : text.status();
  bool has_changed = false;
  {
    std::lock_guard lock(mutex_);
    has_changed = file_failed_ == addresses.ok();
    file_failed_ = !addresses.ok();
    if (addresses.ok()) {
      file_text_ = *std::move(text);
      from_file_ = *addresses;
    }
  }
  if (addresses.ok()) return Update();
  if (has_changed)
    Log(LogLevel::kWarning, path + ": " + addresses.status().ToString() + "; the servers stay as they are");
}

void Membership::WatchName() {
  environment_->connector->Post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->ResolveName();
    self->environment_->timers->After(kNamePause, [weak] {
      if (const auto again = weak.lock()) again->WatchName();
    });
  });
}

void Membership::ResolveName() {
  const Result<ServerAddress> name = ParseServerAddress(environment_->options.dns_name);
  Result<std::vector<std::string>> found = name.ok() ? Resolve(*name) : name.status();
  bool has_changed = false;
  {
    std::lock_guard lock(mutex_);
    has_changed = name_failed_ == found.ok();
    name_failed_ = !found.ok();
    if (found.ok()) from_name_ = *std::move(found);
  }
  if (!name_failed_) return Update();
  if (has_changed)
    Log(LogLevel::kWarning, environment_->options.dns_name + " does not resolve; the servers stay");
}

void Membership::Update() {
  std::vector<std::string> addresses = environment_->options.addresses;
  {
    std::lock_guard lock(mutex_);
    for (const auto* source : {&from_file_, &from_name_}) {
      for (const std::string& text : *source) {
        if (std::find(addresses.begin(), addresses.end(), text) == addresses.end()) addresses.push_back(text);
      }
    }
  }
  Set(addresses);
}

bool Membership::MayBeSent(const ServerAddress& address) const {
  const RemoteOptions& options = environment_->options;
  return options.token.empty() || options.tls.use_tls || options.allow_plaintext_token || address.is_unix() ||
         address.is_loopback();
}

void Membership::Set(const std::vector<std::string>& addresses) {
  std::vector<std::string> refused;
  std::string change;
  bool has_former = false;
  {
    std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    auto next = std::make_shared<ServerList>();
    std::vector<std::shared_ptr<ServerLink>> gone = servers_->current;
    for (const std::string& text : addresses) {
      const auto by_name = [&](const auto& link) { return link->name() == text; };
      if (const auto kept = std::find_if(gone.begin(), gone.end(), by_name); kept != gone.end()) {
        next->current.push_back(*kept);
        gone.erase(kept);
        continue;
      }
      const auto back = std::find_if(former_.begin(), former_.end(),
                                     [&](const Former& former) { return former.link->name() == text; });
      if (back != former_.end()) {
        next->current.push_back(back->link);
        former_.erase(back);
        change += " +" + text;
        continue;
      }
      Result<ServerAddress> address = ParseServerAddress(text);
      if (!address.ok() || !MayBeSent(*address)) {
        refused.push_back(text);
        continue;
      }
      next->current.push_back(
          std::make_shared<ServerLink>(*std::move(address), next_serial_++, environment_));
      change += " +" + text;
    }
    const TimePoint until = environment_->clock->Now() + environment_->options.membership_grace;
    for (auto& link : gone) {
      change += " -" + link->name();
      former_.push_back({std::move(link), until});
      has_former = true;
    }
    for (const auto& link : next->current) next->words.push_back(ServerWord(link->name()));
    for (const Former& former : former_) next->former.push_back(former.link);
    servers_ = std::move(next);
  }
  for (const std::string& text : refused)
    Log(LogLevel::kWarning, text + " is left out: not an address, or the token would be sent in the clear");
  if (!change.empty()) Log(LogLevel::kInfo, "servers:" + change);
  if (!has_former) return;
  environment_->timers->After(environment_->options.membership_grace + std::chrono::milliseconds(1),
                              [weak = weak_from_this()] {
                                if (const auto self = weak.lock()) self->DropFormer();
                              });
}

void Membership::DropFormer() {
  std::vector<std::shared_ptr<ServerLink>> dropped;
  {
    std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    const TimePoint now = environment_->clock->Now();
    std::erase_if(former_, [&](Former& former) {
      if (former.until > now) return false;
      dropped.push_back(std::move(former.link));
      return true;
    });
    auto next = std::make_shared<ServerList>(*servers_);
    next->former.clear();
    for (const Former& former : former_) next->former.push_back(former.link);
    servers_ = std::move(next);
  }
  for (const auto& link : dropped) link->Close();
}

void Membership::Clear() {
  ServerListRef servers = std::make_shared<ServerList>();
  std::vector<Former> former;
  std::lock_guard lock(mutex_);
  servers_.swap(servers);  // what they hold ends after the lock
  former_.swap(former);
}

void Membership::Stop() {
  std::lock_guard lock(mutex_);
  is_stopped_ = true;
}

}  // namespace terrace::remote
