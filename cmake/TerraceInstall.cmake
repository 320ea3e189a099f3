# What `cmake --install` gives: the shared library, its public headers, find_package(Terrace), and the programs
# that were built. The package can be moved to another prefix.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Terrace)

install(TARGETS terrace EXPORT TerraceTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT TerraceTargets NAMESPACE Terrace:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TerraceConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/cmake/TerraceConfig.cmake INSTALL_DESTINATION ${package_dir})
# While the version is 0.x, a minor version may change an interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/TerraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/TerraceConfig.cmake ${PROJECT_BINARY_DIR}/cmake/TerraceConfigVersion.cmake
        DESTINATION ${package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Programs find the library beside them, and the engine where set-up built it.
foreach(program IN ITEMS terrace_program terrace-llama terrace_llama)
  if(TARGET ${program})
    file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}" INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
if(TARGET terrace_program)  # unit and examples of `terrace serve`
  install(FILES ${PROJECT_SOURCE_DIR}/packaging/terrace.service ${PROJECT_SOURCE_DIR}/packaging/terrace.json
                ${PROJECT_SOURCE_DIR}/packaging/tenants.json
          DESTINATION ${CMAKE_INSTALL_DATADIR}/terrace)
  install(FILES ${PROJECT_SOURCE_DIR}/connectors/server/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME server.md)
endif()
