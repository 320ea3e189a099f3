# Included where the tests are.
terrace_test(options_test SOURCES ${CMAKE_CURRENT_LIST_DIR}/tests/key_file_test.cc LINK terrace_options)
