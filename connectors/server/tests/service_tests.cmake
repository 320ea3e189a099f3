# The server's calls and sessions, against clients that speak the contract by hand.
set(here ${CMAKE_CURRENT_LIST_DIR})
terrace_test(service_test
             SOURCES ${here}/session_table_test.cc ${here}/service_calls_test.cc ${here}/service_put_test.cc
                     ${here}/service_bulk_test.cc ${here}/service_tls_test.cc
             LINK terrace_server)
# Server and remote tier against what goes wrong: hostile clients, other versions, restarts, damaged networks.
terrace_test(server_stress_test
             SOURCES ${here}/certificate_test.cc ${here}/hostile_client_test.cc ${here}/restart_test.cc ${here}/network_fault_test.cc ${here}/tcp_proxy.cc
                     ${here}/version_skew_test.cc ${PROJECT_SOURCE_DIR}/backends/remote/tests/fake_server.cc
                     ${PROJECT_SOURCE_DIR}/tests/conformance/test_object.cc
             LINK terrace_serve terrace_server nlohmann_json::nlohmann_json)
