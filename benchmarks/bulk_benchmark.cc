// Bulk sockets, reactor to reactor, with an XXH3 of each step where it lands, beside bare blocking sockets
// that move the same bytes and look at none of them.
//
//   bulk_benchmark [rounds = 5] [mib_per_run = 1024]
//
// One line per socket kind, frame size and number of connections: the medians of runs that alternate, and
// their ratio to the best bare setting of that socket kind and frame size (the last column's goal is 0.85).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/check.h"
#include "lib/wire/bulk_connection.h"

namespace terrace {
namespace {

constexpr size_t kSlots = 8;  // frames in flight

struct Case {
  bool tcp;
  uint64_t frame_bytes;
  size_t connections;
  uint64_t frames;
};

struct Setting {
  size_t connections;
  uint64_t step;
  bool hashed;
  auto operator<=>(const Setting&) const = default;
};

struct Figure {
  double gb_per_s = 0;
  double cpu_s_per_gb = 0;
  uint64_t step_bytes = 0;  // of a report, on average
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

template <typename Run>
Figure Measure(const Case& c, const Run& run) {
  const double cpu = CpuSeconds();
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double gb = static_cast<double>(c.frame_bytes * c.frames) * 1e-9;
  return {gb / seconds.count(), (CpuSeconds() - cpu) / gb};
}

// Frames for both sides, touched before anything is measured.
class Memory {
 public:
  Memory() : from_(kSlots * kRunBytes), to_(kSlots * kRunBytes) {
    for (size_t i = 0; i < from_.size(); i += 8) {
      const uint64_t word = i * 0x9e3779b97f4a7c15;
      std::memcpy(from_.data() + i, &word, sizeof(word));
    }
  }
  BufferRef Frame(size_t slot) {
    auto* control = new BufferControl;
    control->data = from_.data() + slot * kRunBytes;
    control->size_bytes = kRunBytes;
    control->release = [](BufferControl* released) { delete released; };
    return BufferRef(control);
  }
  MutableBytes Target(size_t slot) { return MutableBytes(to_).subspan(slot * kRunBytes + kTierPageBytes); }

 private:
  static constexpr size_t kRunBytes = (size_t{32} << 20) + kTierPageBytes;
  std::vector<std::byte> from_;
  std::vector<std::byte> to_;
};

std::array<int, 2> ConnectedPair(bool tcp) {
  std::array<int, 2> fds{};
  if (!tcp) {
    TERRACE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
    return fds;
  }
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  TERRACE_CHECK(bind(listener, any, length) == 0 && listen(listener, 1) == 0);
  TERRACE_CHECK(getsockname(listener, any, &length) == 0);
  fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  TERRACE_CHECK(connect(fds[0], any, length) == 0);
  fds[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  close(listener);
  return fds;
}

void SendBare(int fd, uint64_t step, const Case& c, Memory& memory) {
  for (uint64_t frame = 0; frame < c.frames / c.connections; ++frame) {
    const BufferRef source = memory.Frame(frame % kSlots);
    for (uint64_t at = 0; at < c.frame_bytes;) {
      const ssize_t n =
          send(fd, source.frame().data() + at, std::min(step, c.frame_bytes - at), MSG_NOSIGNAL);
      TERRACE_CHECK(n > 0);
      at += static_cast<uint64_t>(n);
    }
  }
}

std::atomic<uint64_t> sum_of_sums{0};  // so that no hash is left out

void ReceiveBare(int fd, const Setting& setting, const Case& c, Memory& memory) {
  for (uint64_t frame = 0; frame < c.frames / c.connections; ++frame) {
    std::byte* target = memory.Target(frame % kSlots).data();
    for (uint64_t at = 0; at < c.frame_bytes;) {
      const ssize_t n = recv(fd, target + at, std::min(setting.step, c.frame_bytes - at), 0);
      TERRACE_CHECK(n > 0);
      if (setting.hashed) sum_of_sums += XXH3_64bits(target + at, static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
    }
  }
}

Figure RunBare(const Case& c, const Setting& setting, Memory& memory) {
  std::vector<std::array<int, 2>> pairs;
  for (size_t i = 0; i < c.connections; ++i) pairs.push_back(ConnectedPair(c.tcp));
  const Figure figure = Measure(c, [&] {
    std::vector<std::thread> threads;
    for (const auto& [from, to] : pairs) {
      threads.emplace_back([&, fd = from] { SendBare(fd, setting.step, c, memory); });
      threads.emplace_back([&, fd = to] { ReceiveBare(fd, setting, c, memory); });
    }
    for (std::thread& thread : threads) thread.join();
  });
  for (const auto& pair : pairs) {
    for (const int fd : pair) close(fd);
  }
  return figure;
}

// Transfers one after the other in each slot, over the connections in turn.
class BulkRun {
 public:
  BulkRun(const Case& c, Memory& memory) : case_(c), memory_(memory) {
    for (auto& reactor : reactors_) reactor = *BulkReactor::Start({});
    for (size_t i = 0; i < c.connections; ++i) {
      const auto fds = ConnectedPair(c.tcp);
      from_.push_back(*reactors_[0]->Add({.fd = fds[0], .landings = std::make_shared<LandingTable>()}));
      to_.push_back(*reactors_[1]->Add({.fd = fds[1], .landings = landings_}));
    }
  }
  Figure Run() {
    Figure figure = Measure(case_, [this] {
      for (size_t slot = 0; slot < kSlots; ++slot) Next(slot);
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return done_ == case_.frames; });
    });
    figure.step_bytes = case_.frame_bytes * case_.frames / steps_;
    return figure;
  }

 private:
  void Next(size_t slot) {
    const uint64_t transfer = begun_++;
    if (transfer >= case_.frames) return;
    const FrameRange range{0, case_.frame_bytes, 0};
    const MutableBytes target = memory_.Target(slot);
    Landing landing{.memory = target, .ranges = {range}};
    landing.on_bytes = [this, target](uint64_t offset, uint64_t n) {
      sum_of_sums += XXH3_64bits(target.data() + offset, n);
      ++steps_;
    };
    landing.on_end = [this, slot](const Status& status) {
      TERRACE_CHECK(status.ok()) << status.ToString();
      Next(slot);
      const std::lock_guard lock(mutex_);
      if (++done_ == case_.frames) changed_.notify_all();
    };
    TERRACE_CHECK(landings_->Add(transfer, std::move(landing)).ok());
    from_[transfer % from_.size()]->Send(transfer, memory_.Frame(slot), {range}, nullptr);
  }

  const Case case_;
  Memory& memory_;
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> steps_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t done_ = 0;
  std::shared_ptr<LandingTable> landings_ = std::make_shared<LandingTable>();
  std::vector<std::shared_ptr<BulkConnection>> from_;
  std::vector<std::shared_ptr<BulkConnection>> to_;
  std::unique_ptr<BulkReactor> reactors_[2];
};

Figure Median(std::vector<Figure> figures) {
  std::sort(figures.begin(), figures.end(),
            [](const Figure& a, const Figure& b) { return a.gb_per_s < b.gb_per_s; });
  return figures[figures.size() / 2];
}

void RunGroup(bool tcp, uint64_t frame_bytes, int rounds, uint64_t run_bytes) {
  constexpr std::array<size_t, 3> kConnections = {1, 2, 4};
  constexpr std::array<uint64_t, 2> kSteps = {uint64_t{256} << 10, uint64_t{1} << 20};
  const uint64_t frames = std::max<uint64_t>(kSlots, run_bytes / frame_bytes / 8 * 8);
  Memory memory;
  std::map<Setting, std::vector<Figure>> bare;
  std::map<size_t, std::vector<Figure>> bulk;
  for (int round = 0; round < rounds; ++round) {
    for (const size_t connections : kConnections) {
      const Case c{tcp, frame_bytes, connections, frames};
      for (const uint64_t step : kSteps) {
        for (const bool hashed : {false, true}) {
          const Setting setting{connections, step, hashed};
          bare[setting].push_back(RunBare(c, setting, memory));
        }
      }
      bulk[connections].push_back(BulkRun(c, memory).Run());
    }
  }
  Figure best;
  Figure best_hashed;
  const auto print = [&](size_t connections, const std::string& what, const Figure& figure) {
    std::printf("%-4s %4.1f MB  %zu connections  %-28s %5.2f GB/s  %.3f CPU s/GB", tcp ? "TCP" : "Unix",
                static_cast<double>(frame_bytes) * 1e-6, connections, what.c_str(), figure.gb_per_s,
                figure.cpu_s_per_gb);
  };
  for (const auto& [setting, figures] : bare) {
    const Figure median = Median(figures);
    print(setting.connections,
          "bare, " + std::to_string(setting.step >> 10) + " KiB" + (setting.hashed ? ", XXH3" : ""), median);
    std::printf("\n");
    Figure& limit = setting.hashed ? best_hashed : best;
    if (median.gb_per_s > limit.gb_per_s) limit = median;
  }
  for (const auto& [connections, figures] : bulk) {
    const Figure median = Median(figures);
    print(connections, "bulk, " + std::to_string(median.step_bytes >> 10) + " KiB, XXH3", median);
    std::printf("  %.2f of the best bare, %.2f with XXH3\n", median.gb_per_s / best.gb_per_s,
                median.gb_per_s / best_hashed.gb_per_s);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const uint64_t run_bytes = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1024) << 20;
  if (rounds < 1 || run_bytes == 0) {
    std::fprintf(stderr, "usage: bulk_benchmark [rounds] [mib_per_run]\n");
    return 2;
  }
  constexpr uint64_t kChunkBytes = 5902336;  // a chunk of 256 tokens with its header, 5.9 MB
  for (const bool tcp : {true, false}) {
    for (const uint64_t frame_bytes : {kChunkBytes, uint64_t{32} << 20}) {
      terrace::RunGroup(tcp, frame_bytes, rounds, run_bytes);
    }
  }
  return 0;
}
