//! How identifiers stand in the JSON of the meta log: as numbers, and those of 128 bits as 32 hexadecimal digits.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tidelock_base::{BootId, ClusterId, GroupId, NodeId, ReplicaId, Wall};

macro_rules! as_number {
    ($($module:ident: $type:ident($inner:ty)),*) => {
        $(pub(super) mod $module {
            use super::*;

            pub(in crate::meta) fn serialize<S: Serializer>(id: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                id.0.serialize(serializer)
            }

            pub(in crate::meta) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                <$inner>::deserialize(from).map($type)
            }
        })*
    };
}

as_number!(node: NodeId(u64), group: GroupId(u64), replica: ReplicaId(u64), wall: Wall(i64));

pub(super) mod maybe_node {
    use super::*;

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(in crate::meta) fn serialize<S: Serializer>(
        id: &Option<NodeId>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        id.map(|id| id.0).serialize(serializer)
    }

    pub(in crate::meta) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<NodeId>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(NodeId))
    }
}

pub(super) mod replicas {
    use super::*;

    pub(in crate::meta) fn serialize<S: Serializer>(
        ids: &[ReplicaId],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(ids.iter().map(|id| id.0))
    }

    pub(in crate::meta) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<ReplicaId>, D::Error> {
        Ok(Vec::<u64>::deserialize(from)?
            .into_iter()
            .map(ReplicaId)
            .collect())
    }
}

pub(super) mod boot {
    use super::*;

    pub(in crate::meta) fn serialize<S: Serializer>(id: &BootId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", id.0))
    }

    pub(in crate::meta) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BootId, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16)
            .map(BootId)
            .map_err(serde::de::Error::custom)
    }
}

pub(super) mod maybe_boot {
    use super::*;

    #[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
    pub(in crate::meta) fn serialize<S: Serializer>(
        id: &Option<BootId>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        id.map(|id| format!("{:032x}", id.0)).serialize(serializer)
    }

    pub(in crate::meta) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<BootId>, D::Error> {
        Option::<String>::deserialize(from)?
            .map(|text| u128::from_str_radix(&text, 16).map(BootId))
            .transpose()
            .map_err(serde::de::Error::custom)
    }
}

pub(super) mod cluster {
    use super::*;

    pub(in crate::meta) fn serialize<S: Serializer>(
        id: &ClusterId,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:032x}", id.0))
    }

    pub(in crate::meta) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ClusterId, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16)
            .map(ClusterId)
            .map_err(serde::de::Error::custom)
    }
}
