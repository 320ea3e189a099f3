# TERRACE_SANITIZER: a list for -fsanitize ("address,undefined" or "thread"); empty for none. Left out with one:
#   - the engine and its connector: llama.cpp is built without the sanitizer, so that its threads' hand-offs
#     look like races, and its tests would take hours
#   - the packaging tests, which judge what users install
# RocksDB and liburing are not instrumented either; cmake/tsan.supp says what is not reported because of that.
set(TERRACE_SANITIZER "" CACHE STRING "Sanitizers for -fsanitize, separated by commas; empty for none")
option(TERRACE_FUZZ "Build the fuzzers with clang's libFuzzer (tests/fuzz); everything is instrumented" OFF)
if(TERRACE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TERRACE_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  set(TERRACE_SANITIZER fuzzer-no-link,address,undefined)
endif()
if(TERRACE_SANITIZER)
  add_compile_options(-fsanitize=${TERRACE_SANITIZER} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TERRACE_SANITIZER})
endif()
