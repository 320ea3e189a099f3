# Included where the tests are.
set(here ${CMAKE_CURRENT_LIST_DIR})
terrace_test(server_test
             SOURCES ${here}/server_config_test.cc ${here}/token_file_test.cc ${here}/server_ops_test.cc
                     ${here}/namespace_map_test.cc
             LINK terrace_serve terrace_server nlohmann_json::nlohmann_json)
if(TARGET terrace_program)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME terrace_serve_test COMMAND Python3::Interpreter ${here}/program_test.py $<TARGET_FILE:terrace_program>
                                           ${PROJECT_SOURCE_DIR})
  set_tests_properties(terrace_serve_test PROPERTIES TIMEOUT 600)
endif()
