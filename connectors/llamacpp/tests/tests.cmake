# Included where the tests are, if the engine is at hand.
terrace_test(llamacpp_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/damage_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/engine_fingerprint_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/engine_host.cc
          ${CMAKE_CURRENT_LIST_DIR}/faulty_store_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/isolation_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/llama_cache_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/model_digest_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/model_matrix_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/new_process_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/remote_tier_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/scratch_sequence_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/shaped_store.cc
          ${CMAKE_CURRENT_LIST_DIR}/smollm2_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/store_shape_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/tier_files.cc
          ${CMAKE_CURRENT_LIST_DIR}/tiny_models.cc
          ${PROJECT_SOURCE_DIR}/tests/support/fault_backend.cc
          ${PROJECT_SOURCE_DIR}/tests/support/match_backend.cc
          ${PROJECT_SOURCE_DIR}/tests/support/throwing_backend.cc
  LINK terrace_llamacpp_internal llama
  TIMEOUT 900)
# The real weights are fetched by scripts/setup.sh; without the file the test says so and is skipped.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/smollm2_test.cc PROPERTIES
  COMPILE_DEFINITIONS TERRACE_MODEL_PATH="${TERRACE_MODEL_PATH}")

# The server is the program, as users start it.
if(TARGET terrace_program)
  target_sources(llamacpp_test PRIVATE ${CMAKE_CURRENT_LIST_DIR}/cache_server_test.cc
                 ${PROJECT_SOURCE_DIR}/connectors/llamacpp/tool/serve_process.cc)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/cache_server_test.cc PROPERTIES
    COMPILE_DEFINITIONS TERRACE_PROGRAM_PATH="$<TARGET_FILE:terrace_program>")
  add_dependencies(llamacpp_test terrace_program)
endif()
