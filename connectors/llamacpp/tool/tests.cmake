# Included where the tests are, if the engine is at hand.
add_executable(terrace_llama_tool_test ${CMAKE_CURRENT_LIST_DIR}/byte_size_test.cc)
target_compile_options(terrace_llama_tool_test PRIVATE ${TERRACE_WARNINGS})
target_link_libraries(terrace_llama_tool_test PRIVATE terrace_llama_tool GTest::gtest_main)
add_test(NAME terrace_llama_tool_test COMMAND terrace_llama_tool_test)

# The program itself, with real weights.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME terrace_llama_program_test
         COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/program_test.py $<TARGET_FILE:terrace-llama>
                 ${TERRACE_MODEL_PATH})
set_tests_properties(terrace_llama_program_test PROPERTIES TIMEOUT 900)
