# fuzz_test runs corpus and seeded mutations in every build. TERRACE_FUZZ (clang only) makes the same targets
# programs for libFuzzer, with everything below them instrumented:
#   cmake -S . -B build-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DTERRACE_FUZZ=ON
#   ninja -C build-fuzz fuzzers
#   build-fuzz/bin/fuzz_frame_header -max_total_time=120 FOUND_DIR tests/fuzz/corpus/frame_header
set(fuzz_dir ${PROJECT_SOURCE_DIR}/tests/fuzz)
set(fuzz_targets frame_header superblock manifest_record tier_page
                 bulk_message part_message)
list(TRANSFORM fuzz_targets REPLACE "(.+)" "${fuzz_dir}/fuzz_\\1.cc" OUTPUT_VARIABLE fuzz_sources)
terrace_test(fuzz_test SOURCES ${fuzz_dir}/fuzz_test.cc ${fuzz_sources})

if(TERRACE_FUZZ)
  add_custom_target(fuzzers)
  foreach(target IN LISTS fuzz_targets)
    add_executable(fuzz_${target} ${fuzz_dir}/fuzz_${target}.cc)
    target_compile_options(fuzz_${target} PRIVATE ${TERRACE_WARNINGS})
    target_compile_definitions(fuzz_${target} PRIVATE TERRACE_LIBFUZZER)
    target_link_libraries(fuzz_${target} PRIVATE terrace_internal)
    target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
    add_dependencies(fuzzers fuzz_${target})
  endforeach()
endif()
