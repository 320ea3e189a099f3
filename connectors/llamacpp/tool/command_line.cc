#include "connectors/llamacpp/tool/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "connectors/options/byte_size.h"

namespace terrace::llamacpp {
namespace {

constexpr char kRunExamples[] = R"(
Examples:
  terrace-llama run -m model.gguf -p "Why is the sky blue?"
  terrace-llama run -m model.gguf --document licence.txt -p "Who may copy this?" --cache ~/kv
      (run it again, or with another question: the document is loaded, not computed)
  terrace-llama run -m model.gguf -f prompt.txt -n 32 --cache ~/kv --nvme-bytes 20GiB --json
  terrace-llama run -m model.gguf -f prompt.txt --remote unix:/run/terrace/terrace.sock
      (any other process with the same --remote and model finds what this one computed)
  terrace-llama run -m model.gguf -f prompt.txt --remote kv1:7420,kv2:7420 \
      --remote-ca ca.pem --remote-token-file token)";
constexpr char kChatExamples[] = R"(
Examples:
  terrace-llama chat -m model.gguf --cache ~/kv --session talk.json
      (end it with Ctrl-D or /exit; the same command goes on where it ended)
  printf 'Hello\n' | terrace-llama chat -m model.gguf --cache ~/kv --session talk.json)";
constexpr char kBenchExamples[] = R"(
Cases (time to the first token of prefix + suffix):
  cold   everything is computed, no cache
  slot   the prefix is already in the context: the engine's own floor
  host   the prefix comes from the host tier into an empty context
  nvme   the prefix comes from --cache in a new process, once per repeat
  remote the same from a cache server over sockets (--remote-path: bulk), shm through shared memory. Without
         --remote the server is `terrace serve` on this host, started here and ended afterwards
Cold and store are run once, the other cases --repeat times (medians are printed). store_thread_ms is what
Save took on the decode thread, store_ms that plus the Flush at the end of the prefill; set_data_ms is the
engine's bare call on the same bytes, timed apart from the cache.
Examples:
  terrace-llama bench -m model.gguf --prefix-tokens 4096 --suffix-tokens 64 --cache /tmp/kv
  terrace-llama bench -m model.gguf --cases cold,slot,host --json
  terrace-llama bench -m model.gguf --cases cold,remote,shm)";

constexpr std::string_view kCases[] = {"cold", "slot", "host", "nvme", "remote", "shm"};

[[noreturn]] void Refuse(const std::string& option, const std::string& value, const std::string& allowed) {
  throw CLI::ValidationError(option, "\"" + value + "\" is not allowed; allowed: " + allowed);
}

template <typename Number>
void AddCount(CLI::App* app, const std::string& names, Number* target, uint64_t low, uint64_t high,
              const std::string& description) {
  const std::string option = names.substr(names.rfind("--"));
  app->add_option_function<std::string>(
         names,
         [=](const std::string& text) {
           uint64_t value = 0;
           const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
           if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
             Refuse(option, text,
                    "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
           }
           *target = static_cast<Number>(value);
         },
         description)
      ->type_name("N");
}

template <typename Target>
void AddSize(CLI::App* app, const std::string& option, Target* target, const std::string& description) {
  app->add_option_function<std::string>(
         option,
         [=](const std::string& text) {
           Result<uint64_t> bytes = options::ParseByteSize(text);
           if (!bytes.ok()) {
             Refuse(
                 option, text,
                 std::string(options::kByteSizeSyntax) + " (" + std::string(bytes.status().message()) + ")");
           }
           *target = *bytes;
         },
         description)
      ->type_name("SIZE");
}

template <typename Target>
void AddSwitch(CLI::App* app, const std::string& option, Target* target, const std::string& description) {
  app->add_option_function<std::string>(
         option,
         [=](const std::string& text) {
           if (text != "on" && text != "off") Refuse(option, text, "on, off");
           *target = text == "on";
         },
         description)
      ->type_name("on|off");
}

// The file's whole content; "-" is standard input.
std::string ReadFile(const std::string& option, const std::string& path) {
  std::ostringstream content;
  if (path == "-") {
    content << std::cin.rdbuf();
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) Refuse(option, path, std::string("a file that can be read (") + std::strerror(errno) + ")");
    content << file.rdbuf();
    if (file.fail() && !content.str().empty()) Refuse(option, path, "a file that can be read");
  }
  if (content.str().empty()) Refuse(option, path, "a file that is not empty");
  return content.str();
}

// "500ms", "10s", "2m".
Result<std::chrono::milliseconds> ParseTime(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value);
  const std::string_view name(unit, static_cast<size_t>(end - unit));
  const uint64_t factor = name == "ms" ? 1 : name == "s" ? 1000 : name == "m" ? 60000 : 0;
  constexpr uint64_t kLeast = 10, kMost = 10 * 60000;
  if (error != std::errc() || factor == 0 || value > kMost / factor || value * factor < kLeast) {
    return InvalidArgumentError("a time from 10ms to 10m, such as 500ms or 10s");
  }
  return std::chrono::milliseconds(value * factor);
}

// host:port, [v6]:port, or unix:/path.
bool IsAddress(std::string_view text) {
  constexpr std::string_view kUnix = "unix:/";
  if (text.starts_with(kUnix)) return text.size() > kUnix.size();
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return false;
  }
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  return !host.empty() && error == std::errc() && end == port.data() + port.size() && number >= 1 &&
         number <= 65535;
}

std::string CheckReadable(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (file && file.peek() != std::ifstream::traits_type::eof()) return "";
  return "\"" + path + "\" is not allowed; allowed: a file that can be read and is not empty";
}

void AddModel(CLI::App* app, ModelOptions* model) {
  app->add_option("-m,--model", model->path, "Model, a GGUF file (the first part of a split one)")
      ->required()
      ->check(CheckReadable)
      ->type_name("FILE");
  AddSwitch(app, "--flash-attn", &model->flash_attn, "Flash attention (off)");
  AddCount(app, "--threads", &model->threads, 1, 1024, "Threads that compute (all)");
  AddCount(app, "--ctx", &model->ctx, 256, 1u << 24, "Tokens of context (the model's, at most 8192)");
  app->add_option_function<std::string>(
         "--kv-type",
         [model](const std::string& text) {
           if (text == "f16")
             model->kv_type = GGML_TYPE_F16;
           else if (text == "q8_0")
             model->kv_type = GGML_TYPE_Q8_0;
           else if (text == "q4_0")
             model->kv_type = GGML_TYPE_Q4_0;
           else
             Refuse("--kv-type", text, "f16, q8_0, q4_0");
         },
         "How the engine keeps KV (f16); q8_0 and q4_0 need --flash-attn on")
      ->type_name("f16|q8_0|q4_0");
}

void AddRemote(CLI::App* app, CacheOptions* cache) {
  app->add_option_function<std::string>(
         "--remote",
         [cache](const std::string& text) {
           cache->remote = CLI::detail::split(text, ',');
           for (const std::string& address : cache->remote) {
             if (!IsAddress(address)) {
               Refuse("--remote", text,
                      "a list of HOST:PORT, [V6]:PORT or unix:/PATH, such as kv1:7420,kv2:7420");
             }
           }
         },
         "Cache servers (`terrace serve`) that keep and give what the tiers of this process have not")
      ->type_name("ADDR[,ADDR...]");
  app->add_option(
         "--remote-token-file", cache->remote_token_file,
         "File with the token for the servers, mode 600; sent over TLS, Unix sockets and loopback only")
      ->type_name("FILE");
  app->add_option("--remote-ca", cache->remote_ca, "Speak TLS, and trust the certificates of this PEM file")
      ->type_name("FILE");
  app->add_option_function<std::string>(
         "--remote-path",
         [cache](const std::string& text) {
           if (text != "auto" && text != "streams" && text != "bulk" && text != "shm")
             Refuse("--remote-path", text, "auto, streams, bulk, shm");
           cache->remote_path = text;
         },
         "How the bytes come: gRPC streams, bulk sockets, shared memory (auto: the fastest that works)")
      ->type_name("auto|streams|bulk|shm");
  app->add_option_function<std::string>(
         "--remote-deadline",
         [cache](const std::string& text) {
           const Result<std::chrono::milliseconds> time = ParseTime(text);
           if (!time.ok()) Refuse("--remote-deadline", text, std::string(time.status().message()));
           cache->remote_deadline = *time;
         },
         "How long a prompt waits for the servers at most before it is computed, and the end of the program\n"
         "for what is on its way to them (10s)")
      ->type_name("TIME");
}

void AddCache(CLI::App* app, CacheOptions* cache) {
  app->add_option("--cache", cache->directory, "Directory of the NVMe tier; made if absent")
      ->type_name("DIR");
  AddSize(app, "--host-bytes", &cache->host_bytes, "Host memory for KV (1GiB with --cache, else 0)");
  AddSize(app, "--nvme-bytes", &cache->nvme_bytes, "Limit of the NVMe tier (4GiB)");
  app->add_option(
         "--nvme-key-file", cache->nvme_key_file,
         "Encrypt the NVMe tier with the keys of this file: lines of an id and 64 hex digits, mode 600; the\n"
         "highest id encrypts. A directory stays as it was made, encrypted or not")
      ->type_name("FILE");
  app->add_option_function<std::string>(
         "--io-engine",
         [cache](const std::string& text) {
           if (text != "auto" && text != "io_uring" && text != "threads")
             Refuse("--io-engine", text, "auto, io_uring, threads");
           cache->io_engine = text;
         },
         "What moves the bytes of the NVMe tier (auto: io_uring, or threads where the system forbids it)")
      ->type_name("auto|io_uring|threads");
  app->add_flag("--require-cache", cache->require,
                "Exit with 2 where --cache or --remote cannot be used as given, instead of going on without");
  app->add_option("--salt", cache->salt, "Isolates this cache content from that of other salts")
      ->type_name("TEXT");
  AddRemote(app, cache);
}

void AddRun(CLI::App* app, RunOptions* run) {
  AddModel(app, &run->model);
  AddCache(app, &run->cache);
  auto* prompt =
      app->add_option("-p,--prompt", run->prompts, "Prompt; given more than once, each is answered in turn")
          ->type_name("TEXT")
          ->allow_extra_args(false);
  app->add_option_function<std::string>(
         "-f,--file", [run](const std::string& path) { run->prompts = {ReadFile("--file", path)}; },
         "File that holds the prompt; - is standard input")
      ->type_name("FILE")
      ->excludes(prompt);
  app->add_option("--document", run->document, "Text file that stands before each prompt")
      ->check(CheckReadable)
      ->type_name("FILE");
  AddCount(app, "--document-tokens", &run->document_tokens, 1, 1u << 24,
           "Cut what stands before the prompt (template and document) to exactly N tokens");
  app->add_option("--system", run->system, "System message")->type_name("TEXT");
  AddSwitch(app, "--chat-template", &run->chat_template,
            "Put the prompt into the model's chat template (on where it has one)");
  AddCount(app, "-n,--tokens", &run->max_tokens, 1, 1u << 20, "Tokens to generate at most (128)");
  app->add_flag("--exact", run->cache.exact,
                "Keep only what gives the very logits of a run without cache (whole chunks of 256 tokens)");
  app->add_flag("--clear-slot", run->clear_slot,
                "Empty the context before each prompt, so that only the cache helps");
  app->add_flag("--json", run->json, "One JSON object per prompt on standard output");
  app->footer(kRunExamples);
}

void AddChat(CLI::App* app, ChatOptions* chat) {
  AddModel(app, &chat->model);
  AddCache(app, &chat->cache);
  app->add_option("--session", chat->session, "File that keeps the conversation; made if absent")
      ->type_name("FILE");
  app->add_option("--system", chat->system, "System message of a new conversation")->type_name("TEXT");
  AddCount(app, "-n,--tokens", &chat->max_tokens, 1, 1u << 20, "Tokens of one answer at most (256)");
  app->footer(kChatExamples);
}

void AddBench(CLI::App* app, BenchOptions* bench) {
  AddModel(app, &bench->model);
  AddCache(app, &bench->cache);
  AddCount(app, "--prefix-tokens", &bench->prefix_tokens, 1, 1u << 24, "Tokens that are cached (4096)");
  AddCount(app, "--suffix-tokens", &bench->suffix_tokens, 1, 1u << 20, "Tokens computed after them (64)");
  app->add_option_function<std::string>(
         "--cases",
         [bench](const std::string& text) {
           for (const std::string& name : CLI::detail::split(text, ',')) {
             if (std::find(std::begin(kCases), std::end(kCases), name) == std::end(kCases)) {
               Refuse("--cases", text, "a list of cold, slot, host, nvme, remote, shm, such as cold,host");
             }
             bench->cases.push_back(name);
           }
         },
         "What to measure (cold,slot,host, nvme with --cache, remote with --remote)")
      ->type_name("LIST");
  app->add_option("--text", bench->text, "Text whose tokens are used, repeated or cut (GPL-3 of the system)")
      ->check(CheckReadable)
      ->type_name("FILE");
  AddCount(app, "--repeat", &bench->repeat, 1, 1000,
           "Measurements per case, of which the median is printed (3)");
  app->add_flag("--json", bench->json, "One JSON object per case instead of a table");
  app->add_option("--serve-program", bench->serve_program,
                  "The program `terrace`, for the server of the cases remote and shm (that beside this one)")
      ->type_name("FILE");
  app->add_option("--child-logits", bench->child_logits)->group("");
  app->footer(kBenchExamples);
}

// What spans several options.
void CheckTogether(const ModelOptions& model, const CacheOptions& cache) {
  if (model.kv_type != GGML_TYPE_F16 && !model.flash_attn) {
    Refuse("--kv-type", ggml_type_name(model.kv_type),
           "f16 with --flash-attn off; f16, q8_0, q4_0 with --flash-attn on");
  }
  if (!cache.nvme_key_file.empty() && cache.directory.empty())
    Refuse("--nvme-key-file", cache.nvme_key_file, "only together with --cache DIR");
  if (cache.require && cache.directory.empty() && cache.remote.empty())
    Refuse("--require-cache", "on", "only together with --cache DIR or --remote ADDR");
  if (!cache.remote_token_file.empty() && cache.remote.empty())
    Refuse("--remote-token-file", cache.remote_token_file, "only together with --remote ADDR");
  if (!cache.remote_ca.empty() && cache.remote.empty())
    Refuse("--remote-ca", cache.remote_ca, "only together with --remote ADDR");
}

void CheckRun(const RunOptions& run) {
  CheckTogether(run.model, run.cache);
  if (run.prompts.empty()) Refuse("--prompt", "", "a text, or --file FILE");
  for (const std::string& prompt : run.prompts) {
    if (prompt.empty()) Refuse("--prompt", "", "a text that is not empty");
  }
  if (run.document_tokens > 0 && run.document.empty()) {
    Refuse("--document-tokens", std::to_string(run.document_tokens), "only together with --document FILE");
  }
}

void CheckBench(BenchOptions* bench) {
  CheckTogether(bench->model, bench->cache);
  if (bench->cases.empty()) {
    bench->cases = {"cold", "slot", "host"};
    if (!bench->cache.directory.empty()) bench->cases.push_back("nvme");
    if (!bench->cache.remote.empty()) bench->cases.push_back("remote");
  }
  const std::vector<std::string>& remote = bench->cache.remote;
  const bool has_unix = std::any_of(remote.begin(), remote.end(),
                                    [](const std::string& address) { return address.starts_with("unix:"); });
  for (const std::string& name : bench->cases) {
    if (name == "nvme" && bench->cache.directory.empty())
      Refuse("--cases", name, "nvme only together with --cache DIR");
    if (name == "shm" && !remote.empty() && !has_unix)
      Refuse("--cases", name, "shm only with a unix:/PATH in --remote, or without --remote");
  }
}

}  // namespace

std::variant<Command, int> ParseCommandLine(int argc, const char* const* argv) {
  CLI::App app(
      "Runs a GGUF model with llama.cpp and keeps its KV cache in host memory, on NVMe and on cache "
      "servers,\n"
      "so that a prompt's beginning is computed once.",
      "terrace-llama");
  app.set_version_flag("--version", "terrace-llama " TERRACE_VERSION "\nengine: " TERRACE_ENGINE_BUILD);
  app.require_subcommand(1);
  app.footer(
      "\nterrace-llama COMMAND --help shows a command's options with examples.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, or --require-cache and no cache.");
  RunOptions run;
  ChatOptions chat;
  BenchOptions bench;
  CLI::App* run_app = app.add_subcommand("run", "Answer prompts");
  CLI::App* chat_app = app.add_subcommand("chat", "Hold a conversation that comes back after a restart");
  CLI::App* bench_app =
      app.add_subcommand("bench", "Measure the time to first token, cold and from each tier");
  AddRun(run_app, &run);
  AddChat(chat_app, &chat);
  AddBench(bench_app, &bench);
  try {
    app.parse(argc, argv);
    if (run_app->parsed()) {
      CheckRun(run);
      return Command(std::move(run));
    }
    if (chat_app->parsed()) {
      CheckTogether(chat.model, chat.cache);
      return Command(std::move(chat));
    }
    CheckBench(&bench);
    return Command(std::move(bench));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    if (app.get_subcommands().empty()) {
      std::cerr
          << "terrace-llama: the command \"" << (argc < 2 ? "" : argv[1])
          << "\" is not allowed; allowed: run, chat, bench, --help, --version\nSee terrace-llama --help.\n";
      return kExitUsage;
    }
    std::cerr << "terrace-llama: " << error.what() << "\nSee terrace-llama --help.\n";
    return kExitUsage;
  }
}

}  // namespace terrace::llamacpp
