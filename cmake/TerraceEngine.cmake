# The llama.cpp that scripts/setup.sh built, pinned by scripts/pins.env. Without it everything else builds.
# Sets TERRACE_HAVE_LLAMA and the target `llama`, TERRACE_ENGINE_BUILD (version and digest, part of every
# llama.cpp KvSpec), TERRACE_MODEL_PATH (SmolLM2, where tests find it).
file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/pins.env pins REGEX "^[A-Z0-9_]+=")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/pins.env)
foreach(pin IN LISTS pins)
  string(REGEX MATCH "^([A-Z0-9_]+)=(.*)$" _ "${pin}")
  set(PIN_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
endforeach()

if(DEFINED ENV{TERRACE_CACHE_DIR})
  set(cache_dir $ENV{TERRACE_CACHE_DIR})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(cache_dir $ENV{XDG_CACHE_HOME}/terrace)
else()
  set(cache_dir $ENV{HOME}/.cache/terrace)
endif()
string(SUBSTRING "${PIN_LLAMA_SHA256}" 0 12 short_digest)
set(TERRACE_LLAMA_DIR ${cache_dir}/llama.cpp-${PIN_LLAMA_VERSION}-${short_digest} CACHE PATH
    "Where the pinned llama.cpp is installed")
set(TERRACE_MODEL_PATH ${cache_dir}/models/${PIN_MODEL_FILE} CACHE FILEPATH "SmolLM2 weights for tests")
set(TERRACE_ENGINE_BUILD "llama-cpp-python ${PIN_LLAMA_VERSION} sha256:${PIN_LLAMA_SHA256}")

if(TERRACE_SANITIZER)
  set(TERRACE_HAVE_LLAMA FALSE)
  message(STATUS "Terrace: left out under a sanitizer: connectors/llamacpp, terrace-llama and their tests")
  return()
endif()
find_package(llama CONFIG QUIET PATHS ${TERRACE_LLAMA_DIR} NO_DEFAULT_PATH)
if(llama_FOUND)
  set(TERRACE_HAVE_LLAMA TRUE)
else()
  set(TERRACE_HAVE_LLAMA FALSE)
  message(STATUS "Terrace: llama.cpp was not found in ${TERRACE_LLAMA_DIR}; left out: connectors/llamacpp, "
                 "terrace-llama and their tests (run scripts/setup.sh)")
endif()
