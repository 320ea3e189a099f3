#include "backends/remote/server_address.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <algorithm>
#include <charconv>

namespace terrace::remote {
namespace {

constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;

Status Refuse(std::string_view text, std::string_view why) {
  return InvalidArgumentError("\"" + std::string(text.substr(0, 300)) + "\": " + std::string(why) +
                              "; allowed: host:port, [v6]:port, unix:/path");
}

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
         c == '_';
}

}  // namespace

bool ServerAddress::is_loopback() const {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

Result<ServerAddress> ParseServerAddress(std::string_view text) {
  ServerAddress address;
  address.text = std::string(text);
  if (text.starts_with("unix:")) {
    address.unix_path = std::string(text.substr(5));
    if (address.unix_path.empty() || address.unix_path[0] != '/') return Refuse(text, "no absolute path");
    if (address.unix_path.size() > kMaxUnixPathBytes)
      return Refuse(text, "a socket's path has 107 bytes at most");
    if (address.unix_path.find('\0') != std::string::npos) return Refuse(text, "a zero byte in the path");
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return Refuse(text, "no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port == 0)
    return Refuse(text, "a port is 1..65535");
  if (host.starts_with('[')) {
    in6_addr v6{};
    if (!host.ends_with(']')) return Refuse(text, "no ] after the address");
    address.host = std::string(host.substr(1, host.size() - 2));
    if (inet_pton(AF_INET6, address.host.c_str(), &v6) != 1) return Refuse(text, "not an IPv6 address");
    return address;
  }
  if (host.empty() || host.size() > kMaxHostBytes || !std::all_of(host.begin(), host.end(), IsHostCharacter))
    return Refuse(text, "not a host name");
  address.host = std::string(host);
  return address;
}

}  // namespace terrace::remote
