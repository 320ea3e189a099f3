set(remote_tests ${PROJECT_SOURCE_DIR}/backends/remote/tests)
terrace_test(remote_test
             SOURCES ${remote_tests}/remote_options_test.cc ${remote_tests}/circuit_breaker_test.cc
                     ${remote_tests}/placement_test.cc ${remote_tests}/placement_trace_test.cc ${remote_tests}/membership_test.cc
                     ${remote_tests}/hostile_server_test.cc ${remote_tests}/fake_server.cc
                     ${remote_tests}/real_server_test.cc ${PROJECT_SOURCE_DIR}/tests/conformance/test_object.cc
             LINK terrace_server nlohmann_json::nlohmann_json)
