#include "connectors/llamacpp/tool/serve_process.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

namespace terrace::llamacpp {
namespace {

using std::chrono::steady_clock;

constexpr auto kStartLimit = std::chrono::seconds(60);  // it populates its memory first
constexpr auto kPollPause = std::chrono::milliseconds(2);

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// A port that nobody listens on at this moment. Somebody may take it before the child does; the child then
// ends, which is seen.
Result<uint16_t> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return UnavailableError(std::string("socket: ") + std::strerror(errno));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  const bool found = bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  close(fd);
  if (!found) return UnavailableError(std::string("a port on loopback: ") + std::strerror(error));
  return ntohs(address.sin_port);
}

bool TakesConnections(const sockaddr* address, socklen_t size) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool connected = connect(fd, address, size) == 0;
  close(fd);
  return connected;
}

}  // namespace

std::string ServeProgramBeside() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "terrace").string();
}

Result<std::unique_ptr<ServeProcess>> ServeProcess::Start(Options options) {
  std::unique_ptr<ServeProcess> process(new ServeProcess(std::move(options)));
  std::string directory = (std::filesystem::temp_directory_path() / "terrace-serve-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr)
    return UnavailableError("a temporary folder " + directory + ": " + std::strerror(errno));
  process->directory_ = directory;
  process->socket_ = directory + "/socket";
  const Result<uint16_t> port = FreePort();
  if (!port.ok()) return port.status();
  process->port_ = *port;
  if (Status started = process->Spawn(); !started.ok()) return started;
  return process;
}

ServeProcess::~ServeProcess() {
  if (!End(SIGTERM, 20)) End(SIGKILL, 20);
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

void ServeProcess::Kill() { End(SIGKILL, 20); }

Status ServeProcess::Restart() { return Spawn(); }

Status ServeProcess::Spawn() {
  std::vector<std::string> arguments = {
      options_.program, "serve", "--listen",     tcp_address(),
      "--unix",         socket_, "--host-bytes", std::to_string(options_.host_bytes),
      "--metrics-port", "off",   "--log-level",  "warning"};
  arguments.insert(arguments.end(), options_.arguments.begin(), options_.arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return UnavailableError(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {  // only calls that are safe after a fork of a process with threads
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output is this program's own
    if (getppid() == parent) execv(argv[0], argv.data());
    _exit(127);
  }
  {
    std::lock_guard lock(mutex_);
    child_ = child;
  }
  return AwaitConnections();
}

Status ServeProcess::AwaitConnections() {
  const sockaddr_in tcp = Loopback(port_);
  sockaddr_un local{};
  local.sun_family = AF_UNIX;
  std::strncpy(local.sun_path, socket_.c_str(), sizeof local.sun_path - 1);
  const auto limit = steady_clock::now() + kStartLimit;
  while (!TakesConnections(reinterpret_cast<const sockaddr*>(&tcp), sizeof tcp) ||
         !TakesConnections(reinterpret_cast<const sockaddr*>(&local), sizeof local)) {
    {
      std::lock_guard lock(mutex_);
      if (child_ == 0) return UnavailableError("the server was ended while it started");
      int status = 0;
      if (waitpid(child_, &status, WNOHANG) == child_) {
        child_ = 0;
        return UnavailableError("\"" + options_.program + " serve\" ended at once (status " +
                                std::to_string(status) + ")");
      }
    }
    if (steady_clock::now() > limit)
      return UnavailableError("\"" + options_.program + " serve\" takes no connections");
    std::this_thread::sleep_for(kPollPause);
  }
  return OkStatus();
}

bool ServeProcess::End(int signal, int seconds) {
  std::lock_guard lock(mutex_);
  if (child_ == 0) return true;
  kill(child_, signal);
  const auto limit = steady_clock::now() + std::chrono::seconds(seconds);
  while (steady_clock::now() < limit) {
    const pid_t ended = waitpid(child_, nullptr, WNOHANG);
    if (ended == child_ || (ended < 0 && errno == ECHILD)) {
      child_ = 0;
      return true;
    }
    std::this_thread::sleep_for(kPollPause);
  }
  return false;
}

}  // namespace terrace::llamacpp
