//! End-to-end tests: real programs, checkpointed, killed with SIGKILL and restarted by the staged command line,
//! as an ordinary user unless a test says otherwise. One module a behaviour.

#[path = "behaviour"]
mod behaviour {
    mod bad_input;
    mod bad_trees;
    mod broken_chains;
    mod capi;
    mod cards_that_die;
    mod coi;
    mod command_line;
    mod compressed;
    mod connections_outside;
    mod continues_unharmed;
    mod drain;
    mod examples_survive;
    mod family;
    mod full_disks;
    mod increments;
    mod job_scripts;
    mod kernels;
    mod live;
    mod migrate;
    mod offload_chains;
    mod openmp_conformance;
    mod openmp_features;
    mod plain_programs;
    mod plan;
    mod process_trees;
    mod random_chains;
    mod reports;
    mod restart_elsewhere;
    mod schedule;
    mod shared_cards;
    mod soak;
    mod stops_and_restarts;
    mod swap;
    mod terminals;
}
