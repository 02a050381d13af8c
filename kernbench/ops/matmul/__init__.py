"""The matrix product C = A B over a SIP: its kernels, the placements, their costs, and the choice.

A placement says which PE computes which part of C:

| placement | a PE computes | and reads |
|---|---|---|
| rows | some rows of C | all of B |
| columns | some columns of C | all of A |
| 2-D | columns for its cube, of these the rows for its place in the cube | its rows of A, B of its cube |
| 2-D turned | rows for its cube, of these the columns for its place in the cube | A of its cube, its columns of B |
| split-K | a part of the sum; two more launches add them up | its part of K of A and B |
| split-K in cubes | columns for its cube, of these a part of the sum; one more launch adds them up | its part of K |
| replicated | all of C, on one PE | everything |
| blocks | every nth block of C, where PEs share memory | its rows of A, its columns of B |

A `DPPolicy` is a placement, too: a PE computes the part of C that the policy assigns to it. Where A, B and C are
stored is independent of it: a `Stored` for each.
"""

from kernbench.ops.matmul._blocks import Blocks as Blocks
from kernbench.ops.matmul._blocks import choose_blocks as choose_blocks
from kernbench.ops.matmul._choice import NEAR as NEAR
from kernbench.ops.matmul._choice import USES as USES
from kernbench.ops.matmul._choice import Choice as Choice
from kernbench.ops.matmul._choice import choose_placement as choose_placement
from kernbench.ops.matmul._choice import grouped_placement as grouped_placement
from kernbench.ops.matmul._choice import near as near
from kernbench.ops.matmul._cost import ProductWork as ProductWork
from kernbench.ops.matmul._cost import estimate as estimate
from kernbench.ops.matmul._cost import pieces_of as pieces_of
from kernbench.ops.matmul._cost import product_work as product_work
from kernbench.ops.matmul._cost import traffic as traffic
from kernbench.ops.matmul._kernels import KernelLaunch as KernelLaunch
from kernbench.ops.matmul._kernels import grouped as grouped
from kernbench.ops.matmul._kernels import matmul as matmul
from kernbench.ops.matmul._kernels import multiply as multiply
from kernbench.ops.matmul._kernels import partial_sums as partial_sums
from kernbench.ops.matmul._kernels import steps as steps
from kernbench.ops.matmul._placements import BEST as BEST
from kernbench.ops.matmul._placements import BY_BLOCKS as BY_BLOCKS
from kernbench.ops.matmul._placements import BY_COLUMNS as BY_COLUMNS
from kernbench.ops.matmul._placements import BY_ROWS as BY_ROWS
from kernbench.ops.matmul._placements import GRID as GRID
from kernbench.ops.matmul._placements import ONE_PE as ONE_PE
from kernbench.ops.matmul._placements import PART_BYTES as PART_BYTES
from kernbench.ops.matmul._placements import PLACEMENTS as PLACEMENTS
from kernbench.ops.matmul._placements import SPLIT_IN_CUBES as SPLIT_IN_CUBES
from kernbench.ops.matmul._placements import SPLIT_K as SPLIT_K
from kernbench.ops.matmul._placements import SPLITS as SPLITS
from kernbench.ops.matmul._placements import TURNED as TURNED
from kernbench.ops.matmul._placements import PlacementLike as PlacementLike
from kernbench.ops.matmul._placements import PlacementName as PlacementName
from kernbench.ops.matmul._placements import Product as Product
from kernbench.ops.matmul._placements import group_parts as group_parts
from kernbench.ops.matmul._placements import named as named
from kernbench.ops.matmul._placements import read_from as read_from
from kernbench.ops.matmul._placements import room as room
from kernbench.ops.matmul._placements import share_blocks as share_blocks
from kernbench.ops.matmul._placements import task_of as task_of
from kernbench.ops.matmul._placements import tasks as tasks
