use super::*;
use serde_json::json;

fn ports(count: usize) -> Vec<serde_json::Value> {
    let port = |number: usize| json!({"name": format!("p{number}"), "port": 1 + number % 65_535});
    (0..count).map(port).collect()
}

#[test]
fn of_a_service_with_more_ports_than_a_slice_may_have_its_key_is_kept() {
    let read = |count: usize| {
        let spec = json!({"clusterIPs": ["10.96.0.1"], "ports": ports(count)});
        let service = json!({"metadata": {"uid": "u"}, "spec": spec});
        Service::read(serde_json::from_value(service).unwrap())
    };
    let most = read(20_000);
    assert_eq!((most.ports.len(), most.left_out), (20_000, false));
    let more = read(20_001);
    assert_eq!((&*more.uid, more.left_out), ("u", true));
    assert!(more.ports.is_empty() && more.addresses.is_empty());
    assert_eq!(more, most.without_content());
    assert!(most.bytes() > 20_000 * size_of::<Port>() && more.bytes() < 1000);
}

#[test]
fn of_a_slice_and_a_node_no_longer_lists_are_read_than_the_api_takes() {
    let read = |ports: Vec<serde_json::Value>, endpoints: usize| {
        let names: Vec<_> = (0..100).map(|at| json!({"name": at.to_string()})).collect();
        let endpoint =
            json!({"addresses": ["10.1.0.1"], "conditions": {}, "hints": {"forZones": names}});
        let slice = json!({
            "metadata": {"labels": {SERVICE_NAME: "web"}}, "addressType": "IPv4",
            "ports": ports, "endpoints": vec![endpoint; endpoints],
        });
        Slice::read(serde_json::from_value(slice).unwrap())
    };
    assert_eq!(read(ports(20_001), 1), None);
    assert_eq!(read(ports(1), 1001), None);
    let most = read(ports(20_000), 1000).unwrap();
    assert_eq!((most.ports.len(), most.endpoints.len()), (20_000, 1000));
    let hints = most.endpoints[0].hints.as_ref().unwrap();
    assert_eq!(hints.zones.len(), 8);
    let left = most.without_content();
    assert!(left.ports.is_empty() && left.endpoints.is_empty() && left.bytes() < 1000);
    let addresses: Vec<_> = (0..200)
        .map(|last| json!({"type": "InternalIP", "address": format!("192.0.2.{last}")}))
        .collect();
    let ranges: Vec<_> = (0..200).map(|net| format!("10.{net}.0.0/24")).collect();
    let node = json!({"spec": {"podCIDRs": ranges}, "status": {"addresses": addresses}});
    let node = Node::read(serde_json::from_value(node).unwrap());
    assert_eq!((node.addresses.len(), node.ranges.len()), (16, 16));
}

#[test]
fn a_name_in_a_slice_is_no_address_also_where_it_reads_as_one() {
    let read = |kind: &str| {
        let slice = json!({
            "metadata": {"labels": {SERVICE_NAME: "web"}}, "addressType": kind,
            "ports": ports(1), "endpoints": [{"addresses": ["127.0.0.1"]}],
        });
        Slice::read(serde_json::from_value(slice).unwrap())
    };
    assert!(read("IPv4").is_some());
    assert_eq!(read("FQDN"), None);
}

#[test]
fn lists_of_a_service_and_a_slice_take_no_more_room_than_they_need() {
    let spec = json!({
        "clusterIPs": ["10.96.0.1"], "externalIPs": ["192.0.2.1"],
        "loadBalancerSourceRanges": ["192.0.2.0/24"], "ports": ports(1),
    });
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}});
    let service = json!({"metadata": {"uid": "u"}, "spec": spec, "status": status});
    let service = Service::read(serde_json::from_value(service).unwrap());
    let addresses = [&service.addresses, &service.external, &service.balancers];
    assert_eq!(addresses.map(Vec::capacity), [1; 3]);
    let others = [service.sources.capacity(), service.ports.capacity()];
    assert_eq!(others, [1; 2]);
    let hints = json!({"forNodes": [{"name": "n1"}], "forZones": [{"name": "z1"}]});
    let endpoint = json!({"addresses": ["10.1.0.1"], "hints": hints});
    let slice = json!({
        "metadata": {"labels": {SERVICE_NAME: "web"}}, "addressType": "IPv4",
        "ports": ports(1), "endpoints": [endpoint, endpoint],
    });
    let slice = Slice::read(serde_json::from_value(slice).unwrap()).unwrap();
    assert_eq!((slice.ports.capacity(), slice.endpoints.capacity()), (1, 2));
    let hints = slice.endpoints[0].hints.as_ref().unwrap();
    assert_eq!((hints.nodes.capacity(), hints.zones.capacity()), (1, 1));
}
