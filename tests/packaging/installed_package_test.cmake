# Installs the build into an empty prefix, moves the prefix, builds the example against it outside the tree and
# runs it. The consumer is not allowed to look for what Terrace uses inside (no development package of it may be
# needed), and asks for versions that the package must and must not serve.
include(${CMAKE_CURRENT_LIST_DIR}/run_example.cmake)

function(run)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "FAILS_WITH" "COMMAND")
  execute_process(COMMAND ${arg_COMMAND} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(arg_FAILS_WITH)
    if(result EQUAL 0 OR NOT out MATCHES "${arg_FAILS_WITH}")
      message(FATAL_ERROR "expected a failure with \"${arg_FAILS_WITH}\" (${result}): ${arg_COMMAND}\n${out}")
    endif()
  elseif(NOT result EQUAL 0)
    message(FATAL_ERROR "${arg_COMMAND} ended with ${result}:\n${out}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --config ${CONFIG} --prefix ${WORK_DIR}/first)
file(RENAME ${WORK_DIR}/first ${WORK_DIR}/moved)
set(prefix ${WORK_DIR}/moved)

file(GLOB installed_targets ${prefix}/${LIBDIR}/cmake/Terrace/TerraceTargets*.cmake)
foreach(file IN LISTS installed_targets)
  file(READ ${file} text)
  if(text MATCHES "rocksdb|RocksDB|uring|absl|grpc|gRPC|protobuf|OpenSSL|xxhash|cudart|CUDA|${BUILD_DIR}/")
    message(FATAL_ERROR "${file} names what Terrace uses inside, or the build: ${CMAKE_MATCH_0}")
  endif()
endforeach()
if(NOT EXISTS ${prefix}/include/terrace/storage_manager.h OR EXISTS ${prefix}/include/lib)
  message(FATAL_ERROR "public headers are missing from ${prefix}/include, or internal ones are in it")
endif()

set(consumer -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_PREFIX_PATH=${prefix}
             -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
foreach(package IN ITEMS RocksDB absl gRPC Protobuf OpenSSL PkgConfig CUDAToolkit llama)
  list(APPEND consumer -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
file(COPY ${EXAMPLE_DIR}/ DESTINATION ${WORK_DIR}/example)
run(COMMAND ${CMAKE_COMMAND} -S ${WORK_DIR}/example -B ${WORK_DIR}/example_build ${consumer} -DCMAKE_BUILD_TYPE=Release)
file(STRINGS ${WORK_DIR}/example_build/CMakeCache.txt terrace_dir REGEX "^Terrace_DIR:")
if(NOT terrace_dir STREQUAL "Terrace_DIR:PATH=${prefix}/${LIBDIR}/cmake/Terrace")
  message(FATAL_ERROR "the example found another Terrace: ${terrace_dir}")
endif()
run(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/example_build)
run_example(${WORK_DIR}/example_build/store_and_load ${WORK_DIR}
            "stored: 4 of 4 chunks were new;loaded: 1024 of 1024 tokens, every byte compared")

file(COPY ${ENGINE_EXAMPLE_DIR}/ DESTINATION ${WORK_DIR}/engine_example)
run(COMMAND ${CMAKE_COMMAND} -S ${WORK_DIR}/engine_example -B ${WORK_DIR}/engine_example_build ${consumer}
            -DCMAKE_BUILD_TYPE=Release)
run(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/engine_example_build)
run(COMMAND ${WORK_DIR}/engine_example/run.sh ${WORK_DIR}/engine_example_build/paged_engine)

# The last example needs the installed program beside the library.
file(COPY ${SERVER_EXAMPLE_DIR}/ DESTINATION ${WORK_DIR}/server_example)
run(COMMAND ${CMAKE_COMMAND} -S ${WORK_DIR}/server_example -B ${WORK_DIR}/server_example_build ${consumer}
            -DCMAKE_BUILD_TYPE=Release)
run(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/server_example_build)
if(EXISTS ${prefix}/bin/terrace)
  run(COMMAND ${WORK_DIR}/server_example/run.sh ${prefix}/bin/terrace ${WORK_DIR}/server_example_build/cache_server_engine)
endif()

# While the version is 0.x, another minor version is another interface.
math(EXPR next_minor "${VERSION_MINOR} + 1")
math(EXPR next_major "${VERSION_MAJOR} + 1")
foreach(version IN ITEMS ${VERSION_MAJOR}.${VERSION_MINOR} ${VERSION_MAJOR}.${next_minor} ${next_major}.0)
  file(WRITE ${WORK_DIR}/version_${version}/CMakeLists.txt
       "cmake_minimum_required(VERSION 3.25)\nproject(Ask LANGUAGES CXX)\nfind_package(Terrace ${version} REQUIRED)\n")
  set(ask ${CMAKE_COMMAND} -S ${WORK_DIR}/version_${version} -B ${WORK_DIR}/version_${version}/build ${consumer})
  if(version STREQUAL ${VERSION_MAJOR}.${VERSION_MINOR})
    run(COMMAND ${ask})
  else()
    run(COMMAND ${ask} FAILS_WITH "compatible with requested version")
  endif()
endforeach()
if(EXISTS ${prefix}/bin/terrace-llama)
  run(COMMAND ${prefix}/bin/terrace-llama --help)
endif()
file(REMOVE_RECURSE ${WORK_DIR})
