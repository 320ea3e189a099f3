#include "connectors/server/listen_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <memory>

namespace terrace::server {
namespace {

constexpr int kBacklog = 512;

Status Failed(const std::string& what) { return UnavailableError(what + ": " + std::strerror(errno)); }

uint16_t PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  if (bound.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

Result<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgumentError("unix path \"" + path + "\": 1 to " +
                                std::to_string(sizeof(address.sun_path) - 1) + " bytes are allowed");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

Result<HostPort> ParseHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  const Status wrong =
      InvalidArgumentError("listen \"" + address + "\": allowed are host:port and [v6]:port");
  if (colon == std::string::npos || colon == 0) return wrong;
  HostPort parsed;
  parsed.host = address.substr(0, colon);
  if (parsed.host.front() == '[') {
    if (parsed.host.size() < 3 || parsed.host.back() != ']') return wrong;
    parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  } else if (parsed.host.find(':') != std::string::npos) {
    return wrong;
  }
  const char* last = address.data() + address.size();
  const auto read = std::from_chars(address.data() + colon + 1, last, parsed.port);
  if (read.ec != std::errc() || read.ptr != last) return wrong;
  return parsed;
}

std::string FormatHostPort(const std::string& host, int port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<FileDescriptor> ListenTcp(const HostPort& address, uint16_t& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string name = FormatHostPort(address.host, address.port);
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return UnavailableError("bulk address " + name + ": " + gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> held(found, freeaddrinfo);
  Status last = UnavailableError("bulk address " + name + ": no address");
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    FileDescriptor fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (fd && bind(fd.get(), at->ai_addr, at->ai_addrlen) == 0 && listen(fd.get(), kBacklog) == 0) {
      port = PortOf(fd.get());
      return fd;
    }
    last = Failed("bulk address " + name);
  }
  return last;
}

Status ClearUnixPath(const std::string& path) {
  const Result<sockaddr_un> address = UnixAddress(path);
  if (!address.ok()) return address.status();
  struct stat there {};
  if (lstat(path.c_str(), &there) != 0) {
    return errno == ENOENT ? OkStatus() : Failed("unix path " + path);
  }
  if (!S_ISSOCK(there.st_mode)) {
    return InvalidArgumentError("unix path \"" + path + "\": there is something that is no socket");
  }
  const FileDescriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return Failed("unix path " + path);
  const int connected = connect(probe.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address));
  const int why = errno;
  if (connected == 0 || why == EAGAIN)
    return UnavailableError("unix path " + path + ": somebody listens there");
  if (why != ECONNREFUSED) return UnavailableError("unix path " + path + ": " + std::strerror(why));
  return unlink(path.c_str()) == 0 || errno == ENOENT ? OkStatus() : Failed("unix path " + path);
}

Result<FileDescriptor> ListenUnix(const std::string& path) {
  if (const Status cleared = ClearUnixPath(path); !cleared.ok()) return cleared;
  const Result<sockaddr_un> address = UnixAddress(path);
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The mode before anybody can connect: that takes listen.
  if (fd && bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) == 0 &&
      chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0 && listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  return Failed("unix path " + path);
}

}  // namespace terrace::server
