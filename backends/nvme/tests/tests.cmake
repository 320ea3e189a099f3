set(nvme_tests ${PROJECT_SOURCE_DIR}/backends/nvme/tests)
terrace_test(nvme_test TIMEOUT 900
             SOURCES ${nvme_tests}/extent_allocator_test.cc ${nvme_tests}/extent_workload_test.cc
                     ${nvme_tests}/nvme_health_test.cc ${nvme_tests}/nvme_quarantine_test.cc
                     ${nvme_tests}/placement_test.cc ${nvme_tests}/transfer_queue_test.cc
                     ${nvme_tests}/nvme_directory_test.cc ${nvme_tests}/nvme_backend_test.cc
                     ${nvme_tests}/nvme_damage_test.cc ${nvme_tests}/nvme_fault_test.cc
                     ${nvme_tests}/nvme_room_test.cc ${nvme_tests}/nvme_full_disk_test.cc ${nvme_tests}/nvme_stripe_test.cc
                     ${nvme_tests}/striped_backend_test.cc ${nvme_tests}/system_disk_test.cc
                     ${nvme_tests}/io_engine_test.cc ${nvme_tests}/nvme_io_mode_test.cc
                     ${nvme_tests}/segment_files_test.cc ${nvme_tests}/superblock_test.cc
                     ${nvme_tests}/key_ring_test.cc ${nvme_tests}/sealed_run_test.cc
                     ${nvme_tests}/nvme_encryption_test.cc
                     ${nvme_tests}/erased_log_test.cc ${nvme_tests}/nvme_erased_test.cc
                     ${nvme_tests}/nvme_rebuild_test.cc ${nvme_tests}/nvme_sync_test.cc
                     ${nvme_tests}/nvme_verify_test.cc ${nvme_tests}/nvme_verify_records_test.cc
                     ${nvme_tests}/nvme_verify_sealed_test.cc ${nvme_tests}/verify_parts_test.cc
                     ${nvme_tests}/nvme_test_store.cc ${PROJECT_SOURCE_DIR}/tests/conformance/kept_backend.cc
                     ${PROJECT_SOURCE_DIR}/tests/conformance/test_object.cc
             LINK RocksDB::rocksdb-shared)
terrace_test(nvme_simulation_test
             SOURCES ${nvme_tests}/nvme_simulation_test.cc ${nvme_tests}/simulation_audit.cc
                     ${nvme_tests}/simulation_model.cc ${nvme_tests}/simulation_run.cc
                     ${nvme_tests}/simulated_disk_test.cc ${nvme_tests}/simulated_disk.cc
                     ${nvme_tests}/simulated_file.cc ${nvme_tests}/simulated_file_system.cc
                     ${nvme_tests}/simulated_names.cc ${nvme_tests}/simulated_world.cc
                     ${PROJECT_SOURCE_DIR}/tests/conformance/test_object.cc
             LINK RocksDB::rocksdb-shared)
terrace_test(nvme_kill_test
             SOURCES ${nvme_tests}/nvme_kill_test.cc ${nvme_tests}/simulation_audit.cc
                     ${nvme_tests}/simulation_model.cc ${nvme_tests}/nvme_test_store.cc
                     ${PROJECT_SOURCE_DIR}/tests/conformance/test_object.cc
             LINK RocksDB::rocksdb-shared)
set_tests_properties(nvme_simulation_test nvme_kill_test PROPERTIES LABELS "simulation" TIMEOUT 900)
