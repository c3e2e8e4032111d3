-------------------------------- MODULE load --------------------------------
(* W ranks load the chunks of one prompt. Rank r owns every chunk c with c mod W = r. It gets its own chunks, and goes  *)
(* through the list up to the first chunk of its own whose bytes it does not have. Then it enters an exchange, in which *)
(* every rank learns the least of these places: the agreed prefix. After that all ranks enter one broadcast for each    *)
(* chunk of the prefix, in order; the owner gives its bytes to all. Who is in the exchange leaves it when everybody has *)
(* entered it, who is in a broadcast when the owner of the chunk has. Bytes may come at any time, also too late, or     *)
(* never. Written from these words, not from the other two descriptions of the protocol, and compared with them by the  *)
(* number of states.                                                                                                    *)
EXTENDS Naturals, FiniteSets

CONSTANTS W, N

VARIABLES have,     \* have[r]: the own chunks of rank r whose bytes it has
          place,    \* place[r]: how far rank r has gone through the list
          pc,       \* pc[r]: "own", "exchange", "between", "broadcast"
          round,    \* round[r]: how many collectives rank r has left
          prefix,   \* prefix[r]: the agreed prefix, once rank r knows it
          got       \* got[r]: the chunks that broadcasts have brought to rank r

vars == <<have, place, pc, round, prefix, got>>

Ranks  == 0 .. W - 1
Chunks == 0 .. N - 1
Owner(c) == c % W

Init == /\ have   = [r \in Ranks |-> {}]
        /\ place  = [r \in Ranks |-> 0]
        /\ pc     = [r \in Ranks |-> "own"]
        /\ round  = [r \in Ranks |-> 0]
        /\ prefix = [r \in Ranks |-> 0]
        /\ got    = [r \in Ranks |-> {}]

Least(S) == CHOOSE x \in S : \A y \in S : x <= y

(* Rank q has entered collective number i, the exchange being number 0. *)
HasEntered(q, i) == \/ round[q] > i
                    \/ round[q] = i /\ pc[q] \in {"exchange", "broadcast"}

BytesCome(r) == \E c \in Chunks \ have[r] :
    /\ Owner(c) = r
    /\ have' = [have EXCEPT ![r] = @ \cup {c}]
    /\ UNCHANGED <<place, pc, round, prefix, got>>

GoPast(r) ==
    /\ pc[r] = "own" /\ place[r] < N
    /\ Owner(place[r]) = r => place[r] \in have[r]
    /\ place' = [place EXCEPT ![r] = @ + 1]
    /\ UNCHANGED <<have, pc, round, prefix, got>>

EnterExchange(r) ==
    /\ pc[r] = "own"
    /\ \/ place[r] = N
       \/ Owner(place[r]) = r /\ place[r] \notin have[r]
    /\ pc' = [pc EXCEPT ![r] = "exchange"]
    /\ UNCHANGED <<have, place, round, prefix, got>>

LeaveExchange(r) ==
    /\ pc[r] = "exchange"
    /\ \A q \in Ranks : HasEntered(q, 0)
    /\ pc'     = [pc EXCEPT ![r] = "between"]
    /\ round'  = [round EXCEPT ![r] = 1]
    /\ prefix' = [prefix EXCEPT ![r] = Least({place[q] : q \in Ranks})]
    /\ UNCHANGED <<have, place, got>>

EnterBroadcast(r) ==
    /\ pc[r] = "between" /\ round[r] <= prefix[r]
    /\ pc' = [pc EXCEPT ![r] = "broadcast"]
    /\ UNCHANGED <<have, place, round, prefix, got>>

LeaveBroadcast(r) ==
    LET c == round[r] - 1 IN
    /\ pc[r] = "broadcast"
    /\ HasEntered(Owner(c), round[r])
    /\ pc'    = [pc EXCEPT ![r] = "between"]
    /\ round' = [round EXCEPT ![r] = @ + 1]
    /\ got'   = [got EXCEPT ![r] = @ \cup (IF c \in have[Owner(c)] THEN {c} ELSE {})]
    /\ UNCHANGED <<have, place, prefix>>

Moves(r) == GoPast(r) \/ EnterExchange(r) \/ LeaveExchange(r) \/ EnterBroadcast(r) \/ LeaveBroadcast(r)

Next == \E r \in Ranks : BytesCome(r) \/ Moves(r)

Unfair == Init /\ [][Next]_vars
Fair   == Unfair /\ \A r \in Ranks : WF_vars(Moves(r))

Done(r) == pc[r] = "between" /\ round[r] = prefix[r] + 1

(* What is claimed. *)
Agree  == \A r, q \in Ranks : round[r] > 0 /\ round[q] > 0 => prefix[r] = prefix[q]
NoSkip == \A r, q \in Ranks : Done(r) /\ pc[q] \in {"exchange", "broadcast"} => HasEntered(r, round[q])
Whole  == \A r \in Ranks : Done(r) => got[r] = 0 .. prefix[r] - 1
Stuck  == (\A r \in Ranks : Done(r)) \/ \E r \in Ranks : ENABLED Moves(r)
Ends   == <>(\A r \in Ranks : Done(r))
=============================================================================
