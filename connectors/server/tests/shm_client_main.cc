// The client's process of the shared memory tests: connects, then obeys lines on standard input, each
// answered by one line.
//
//   shm_client SOCKET SESSION TOKEN [UID]      session and token in hex
//
//   get OFFSET BYTES GENERATION     a copy through the data path: "ok DIGEST", or the status
//   hold OFFSET BYTES GENERATION    keeps a view: "held", or the status
//   check                           of the view: "valid DIGEST" or "invalid"
//   stage OFFSET FILE               the file's bytes into the staging area: "staged"
//   scribble OFFSET FILE            from now on, for ever, junk and the file's bytes by turns: "scribbling"
//   files                           the memory files that this process has mapped or open, by inode
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <iostream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "backends/remote/shm_path.h"
#include "connectors/server/tests/shm_digest.h"

namespace terrace::remote {
namespace {

template <size_t kBytes>
bool FromHex(const std::string& text, std::array<std::byte, kBytes>& out) {
  if (text.size() != 2 * kBytes) return false;
  for (size_t i = 0; i < kBytes; ++i) {
    out[i] = static_cast<std::byte>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return true;
}

std::vector<char> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

v1::GetResult ReadPlace(std::istream& in) {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t generation = 0;
  in >> offset >> bytes >> generation;
  v1::GetResult result;
  result.mutable_result()->set_code(v1::RESULT_CODE_OK);
  result.set_frame_bytes(bytes);
  result.mutable_place()->set_offset(offset);
  result.mutable_place()->set_generation(generation);
  return result;
}

class Client {
 public:
  explicit Client(std::shared_ptr<ShmMapping> mapping) : mapping_(std::move(mapping)) {
    ShmPathOptions options;
    options.mapping = mapping_;
    options.landings = landings_;
    path_ = ShmPath::Start(std::move(options));
  }

  std::string Obey(const std::string& line) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    if (command == "get") return Get(ReadPlace(in));
    if (command == "hold") return Hold(ReadPlace(in));
    if (command == "check") return Check();
    if (command == "files") return Files();
    uint64_t offset = 0;
    std::string file;
    in >> offset >> file;
    const std::vector<char> bytes = ReadFile(file);
    Result<MutableBytes> staging = mapping_->StagingAt(offset, bytes.size());
    if (!staging.ok()) return staging.status().ToString();
    if (command == "scribble") {
      std::thread([to = *staging, bytes] { Scribble(to, bytes); }).detach();
      return "scribbling";
    }
    std::memcpy(staging->data(), bytes.data(), bytes.size());
    return "staged";
  }

 private:
  std::string Get(const v1::GetResult& answer) {
    std::vector<std::byte> memory(answer.frame_bytes());
    std::promise<Status> ended;
    Landing landing;
    landing.memory = memory;
    landing.ranges = {{0, memory.size(), 0}};
    landing.on_end = [&](const Status& status) { ended.set_value(status); };
    if (const Status added = landings_->Add(++last_transfer_, std::move(landing)); !added.ok()) {
      return added.ToString();
    }
    path_->OnGetResult(last_transfer_, answer);
    const Status status = ended.get_future().get();
    return status.ok() ? "ok " + DigestOf(memory) : std::string(StatusCodeName(status.code()));
  }

  std::string Hold(const v1::GetResult& answer) {
    Result<ShmView> view = path_->View(answer);
    if (!view.ok()) return std::string(StatusCodeName(view.status().code()));
    view_.emplace(*std::move(view));
    return "held";
  }

  std::string Check() const {
    if (!view_) return "no view";
    const std::string digest = DigestOf(view_->bytes());
    return view_->IsStillValid() ? "valid " + digest : "invalid";
  }

  [[noreturn]] static void Scribble(MutableBytes to, const std::vector<char>& bytes) {
    while (true) {
      std::memset(to.data(), 0x5a, to.size());
      std::memcpy(to.data(), bytes.data(), bytes.size());
    }
  }

  static std::string Files() {
    std::set<uint64_t> inodes;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      std::istringstream in(line);
      std::string range;
      std::string rights;
      std::string offset;
      std::string device;
      uint64_t inode = 0;
      std::string name;
      in >> range >> rights >> offset >> device >> inode >> name;
      if (name.rfind("/memfd:", 0) == 0) inodes.insert(inode);
    }
    for (int fd = 0; fd < 1024; ++fd) {
      struct stat found {};
      if (fstat(fd, &found) == 0) inodes.insert(found.st_ino);
    }
    std::string answer;
    for (const uint64_t inode : inodes) answer += " " + std::to_string(inode);
    return answer;
  }

  const std::shared_ptr<ShmMapping> mapping_;
  const std::shared_ptr<LandingTable> landings_ = std::make_shared<LandingTable>();
  std::shared_ptr<ShmPath> path_;
  std::optional<ShmView> view_;
  uint64_t last_transfer_ = 0;
};

int Main(int argc, char** argv) {
  ShmHello hello;
  if (argc < 4 || !FromHex(argv[2], hello.session) || !FromHex(argv[3], hello.token)) {
    std::cerr << "usage: shm_client SOCKET SESSION TOKEN [UID]\n";
    return 2;
  }
  if (argc > 4 && setuid(static_cast<uid_t>(std::stoul(argv[4]))) != 0) {
    std::cout << "no such user" << std::endl;
    return 1;
  }
  Result<std::shared_ptr<ShmMapping>> mapping = ShmMapping::Connect(argv[1], hello, std::chrono::seconds(20));
  if (!mapping.ok()) {
    std::cout << mapping.status().ToString() << std::endl;
    return 1;
  }
  std::cout << "connected" << std::endl;
  Client client(*std::move(mapping));
  for (std::string line; std::getline(std::cin, line);) std::cout << client.Obey(line) << std::endl;
  std::_Exit(0);  // a thread may be scribbling
}

}  // namespace
}  // namespace terrace::remote

int main(int argc, char** argv) { return terrace::remote::Main(argc, argv); }
