# Included where the tests are.
terrace_test(options_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/tests/key_file_test.cc ${CMAKE_CURRENT_LIST_DIR}/tests/byte_size_test.cc LINK terrace_options)
