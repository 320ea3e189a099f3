#include "benchmarks/fio_run.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "backends/nvme/file_descriptor.h"
#include "lib/base/status_macros.h"

extern char** environ;

namespace terrace::bench {
namespace {

// Standard output of a program; kNotFound where there is no such program.
Result<std::string> OutputOf(std::vector<std::string> arguments) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe", errno);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string output;
  if (error == 0) {
    char part[4096];
    for (;;) {
      const ssize_t n = read(ends[0], part, sizeof(part));
      if (n > 0) output.append(part, static_cast<size_t>(n));
      if (n == 0 || (n < 0 && errno != EINTR)) break;
    }
  }
  close(ends[0]);
  if (error == ENOENT) return NotFoundError(arguments[0] + " is not installed");
  if (error != 0) return ErrnoStatus(arguments[0], error);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) {
    return UnavailableError(arguments[0] + " failed (wait status " + std::to_string(status) + "): " + output);
  }
  return output;
}

// fio may print notes in front of the JSON.
Result<FioFigures> ParseFigures(const std::string& output) {
  const size_t begin = output.find('{');
  const nlohmann::json report = begin == std::string::npos
                                    ? nlohmann::json()
                                    : nlohmann::json::parse(output.substr(begin), nullptr, false);
  if (!report.is_object() || !report.contains("jobs") || report["jobs"].empty()) {
    return UnavailableError("fio's output is not the JSON of a job: " + output.substr(0, 500));
  }
  const nlohmann::json& job = report["jobs"][0];
  FioFigures figures;
  figures.gbps = (job["read"].value("bw_bytes", 0.0) + job["write"].value("bw_bytes", 0.0)) / 1e9;
  if (figures.gbps <= 0) return UnavailableError("fio moved nothing: " + output.substr(0, 500));
  figures.cpu_s_per_gb = (job.value("usr_cpu", 0.0) + job.value("sys_cpu", 0.0)) / 100 / figures.gbps;
  return figures;
}

}  // namespace

FioFile::~FioFile() { unlink(path_.c_str()); }

Status FioFile::Prepare() {
  const FioJob job{.rw = "write", .block_bytes = uint64_t{2} << 20, .depth = 4, .io_bytes = size_bytes_};
  const Result<FioFigures> written = Run(job);
  if (written.ok() || written.status().code() == StatusCode::kNotFound) return written.status();
  registered_ = false;  // RLIMIT_MEMLOCK, most likely
  return Run(job).status();
}

Result<FioFigures> FioFile::Run(const FioJob& job) {
  const auto option = [](const char* name, const std::string& value) {
    return "--" + std::string(name) + "=" + value;
  };
  std::vector<std::string> arguments = {"fio",
                                        "--name=probe",
                                        "--ioengine=io_uring",
                                        "--direct=1",
                                        "--fallocate=none",
                                        "--output-format=json",
                                        option("filename", path_),
                                        option("size", std::to_string(size_bytes_)),
                                        option("io_size", std::to_string(job.io_bytes)),
                                        option("rw", job.rw),
                                        option("bs", std::to_string(job.block_bytes)),
                                        option("iodepth", std::to_string(job.depth))};
  if (job.rw == "randrw") arguments.push_back(option("rwmixread", std::to_string(job.read_percent)));
  if (registered_) arguments.insert(arguments.end(), {"--fixedbufs", "--registerfiles"});
  TERRACE_ASSIGN_OR_RETURN(const std::string output, OutputOf(std::move(arguments)));
  return ParseFigures(output);
}

}  // namespace terrace::bench
