//! The API server as its clients use it: in the process, over TLS, and with unmodified clients. One
//! program, as each test program links the whole server.

mod admission;
mod allocation;
mod apply;
mod authorization;
mod builtin;
mod common;
mod crowded;
mod deletion;
mod flows;
mod guarded;
mod hostile_nodes;
mod kept_nodes;
mod kinds;
mod kube;
mod kubectl;
mod listening;
mod lists;
mod metrics;
mod nonsense;
mod pod_proxies;
mod power;
mod python;
mod retired;
mod rights;
mod service_for_names;
mod services_of_all;
mod subresources;
mod taken_nodes;
mod tokens;
mod tunnels;
mod unread;
mod upstream;
mod verbs;
mod watching;
mod websockets;
