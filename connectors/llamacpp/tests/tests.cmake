# Included where the tests are, if the engine is at hand.
terrace_test(llamacpp_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/engine_fingerprint_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/engine_host.cc
          ${CMAKE_CURRENT_LIST_DIR}/isolation_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/llama_cache_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/model_digest_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/model_matrix_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/new_process_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/scratch_sequence_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/tiny_models.cc
  LINK terrace_llamacpp_internal llama
  TIMEOUT 900)
