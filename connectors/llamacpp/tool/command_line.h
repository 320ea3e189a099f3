// What the user asked terrace-llama for. Parsing checks everything that can be checked without the model, and
// names the option, the value and what is allowed.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "llama.h"

namespace terrace::llamacpp {

struct ModelOptions {
  std::string path;
  bool flash_attn = false;
  uint32_t threads = 0;  // 0 = as many as the machine has
  uint32_t ctx = 0;      // 0 = the model's, at most 8,192
  ggml_type kv_type = GGML_TYPE_F16;
};

struct CacheOptions {
  std::string directory;               // empty = no NVMe tier
  std::optional<uint64_t> host_bytes;  // absent = 1 GiB with a directory, else nothing
  uint64_t nvme_bytes = uint64_t{4} << 30;
  std::string nvme_key_file;        // empty = the tier is not encrypted
  std::string io_engine = "auto";   // or io_uring, threads
  std::vector<std::string> remote;  // addresses of cache servers; empty = no remote tier
  std::string remote_token_file;
  std::string remote_ca;             // PEM file; set: TLS
  std::string remote_path = "auto";  // or streams, bulk, shm
  // How long a prompt waits for the remote tier at most, and the end of the program for what is on its way.
  std::chrono::milliseconds remote_deadline{10000};
  bool require = false;
  std::string salt;
  bool exact = false;  // LlamaCacheOptions::exact_only
};

struct RunOptions {
  ModelOptions model;
  CacheOptions cache;
  std::vector<std::string> prompts;
  std::string document;          // file that stands before each prompt
  uint64_t document_tokens = 0;  // what stands before the prompt is cut to this; 0 = all of it
  std::string system;
  std::optional<bool> chat_template;  // absent = where the model brings one
  uint32_t max_tokens = 128;
  bool clear_slot = false;
  bool json = false;
};

struct ChatOptions {
  ModelOptions model;
  CacheOptions cache;
  std::string session;
  std::string system;
  uint32_t max_tokens = 256;
};

struct BenchOptions {
  ModelOptions model;
  CacheOptions cache;
  uint64_t prefix_tokens = 4096;
  uint64_t suffix_tokens = 64;
  std::vector<std::string> cases;  // of cold, slot, host, nvme, remote, shm
  std::string text = "/usr/share/common-licenses/GPL-3";
  uint32_t repeat = 3;
  bool json = false;
  std::string serve_program;  // starts the server of the cases remote and shm; empty = terrace beside this
  // Set by the program itself for the process that measures nvme, remote or shm: where its logits go.
  std::string child_logits;
};

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

using Command = std::variant<RunOptions, ChatOptions, BenchOptions>;

// The command, or the exit code after --help, --version (0) or a usage error (2); what they print was
// printed.
std::variant<Command, int> ParseCommandLine(int argc, const char* const* argv);

}  // namespace terrace::llamacpp
