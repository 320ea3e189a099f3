# The messages of the data paths, the landing table and the bulk reactor.
set(wire_tests ${PROJECT_SOURCE_DIR}/tests/wire)
terrace_test(bulk_test
             SOURCES ${wire_tests}/bulk_fixture.cc ${wire_tests}/bulk_message_test.cc ${wire_tests}/part_message_test.cc
                     ${wire_tests}/landing_table_test.cc ${wire_tests}/bulk_reactor_test.cc ${wire_tests}/bulk_peer_test.cc
                     ${wire_tests}/bulk_handshake_test.cc
             LINK OpenSSL::SSL)
