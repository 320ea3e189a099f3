# Terrace::terrace (shared, what users link) and terrace_internal (static, the same objects with their internal
# headers: tests and benchmarks of parts).
get_property(modules GLOBAL PROPERTY TERRACE_MODULES)
get_property(depends GLOBAL PROPERTY TERRACE_MODULE_DEPENDS)
list(REMOVE_DUPLICATES depends)
set(objects "")
foreach(module IN LISTS modules)
  list(APPEND objects $<TARGET_OBJECTS:${module}>)
endforeach()

file(GLOB TERRACE_PUBLIC_HEADERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/terrace/*.h)

add_library(terrace SHARED ${objects})
add_library(Terrace::terrace ALIAS terrace)
target_sources(terrace PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${TERRACE_PUBLIC_HEADERS})
target_compile_features(terrace PUBLIC cxx_std_20)
target_link_libraries(terrace PRIVATE ${depends} Threads::Threads)
set_target_properties(terrace PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                         VERIFY_INTERFACE_HEADER_SETS ON)
target_link_options(terrace PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)

add_library(terrace_internal STATIC ${objects})
target_include_directories(terrace_internal PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(terrace_internal PUBLIC ${depends} Threads::Threads)
